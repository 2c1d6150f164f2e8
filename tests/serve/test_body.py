"""Bodies to structs: which fields are named as unknown, at whatever depth."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from specexport.serve.settings import ServerSettings
from specexport.serve.wire.body import parse
from specexport.serve.wire.errors import ApiError
from specexport.serve.wire.requests import ChatRequest
from specexport.serve.wire.translate import parameters
from support.refusals import refused

HELLO = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"any": {"thing": 1}}}}


def ignored(strict: bool = False, **fields: Any) -> list[str]:
    return parse(ChatRequest, json.dumps({"messages": [HELLO], **fields}).encode(), strict).ignored


UNKNOWN = [
    ({"zzz": 1}, "zzz"),
    ({"messages": [HELLO, {**HELLO, "zzz": 1}]}, "messages[1].zzz"),
    ({"messages": [{**HELLO, "audio_id": "No."}]}, "messages[0].audio_id"),
    ({"messages": [{**HELLO, "content": [{"type": "text", "text": "x", "zzz": 1}]}]}, "messages[0].content[0].zzz"),
    ({"stream_options": {"zzz": False}}, "stream_options.zzz"),
    ({"response_format": {"type": "text", "zzz": 1}}, "response_format.zzz"),
    ({"tools": [{**TOOL, "function": {"name": "f", "zzz": 1}}]}, "tools[0].function.zzz"),
]


@pytest.mark.parametrize(("fields", "name"), UNKNOWN, ids=[name for _, name in UNKNOWN])
def test_an_unknown_field_is_named_wherever_it_is(fields: dict[str, Any], name: str) -> None:
    assert ignored(**fields) == [name]
    with pytest.raises(ApiError) as refused:
        ignored(strict=True, **fields)
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", name)


def test_what_answers_have_may_be_sent_back() -> None:
    answer = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    named = {**HELLO, "name": "Ann"}
    assert ignored(strict=True, messages=[named, answer], tools=[TOOL], stream_options={"zzz": None}) == []


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("value", [1, None])
def test_a_slip_in_the_servers_own_object_is_refused_by_name(strict: bool, value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        ignored(strict, specexport={"speculate": True, "num_drafts": value})
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", "specexport.num_drafts")
    assert "num_draft_tokens" in str(refused.value)


BEYOND = [
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
    ({"messages": []}, "messages"),
    ({"messages": [{**HELLO, "name": "n" * 257}]}, "messages[0].name"),
    ({"logit_bias": {"7": 101}}, "logit_bias.7"),  # msgspec does not say which one
    ({"logit_bias": {"[0]": 1000}}, "logit_bias.[0]"),
    ({"logit_bias": {"[x]": "1"}}, "logit_bias.[x]"),
    ({"chat_template_kwargs": {"[x]": [1]}}, "chat_template_kwargs.[x]"),
    ({"seed": 2**63}, "seed"),
    ({"temperature": "hot"}, "temperature"),
]


@pytest.mark.parametrize(("fields", "name"), BEYOND, ids=[name + str(at) for at, (_, name) in enumerate(BEYOND)])
def test_a_value_beyond_its_bounds_is_told_with_them(fields: dict[str, Any], name: str) -> None:
    with refused(ApiError, name, field=name):
        ignored(**fields)


def test_reading_a_large_body_costs_a_few_calls_for_each_of_its_parts() -> None:
    """The event loop reads it: what takes long there holds up every stream."""
    parts = 2000
    message = {"role": "user", "content": [{"type": "text", "text": ""}] * (parts // 2)}
    body = json.dumps({"messages": [message, message]}).encode()
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        parse(ChatRequest, body, False)
    finally:
        sys.setprofile(None)
    assert calls < 20 * parts


@pytest.mark.parametrize(
    "value",
    [b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'{"a": 1, "a": 2}', b"9" * 5000],
    ids=repr,
)
def test_what_is_no_strict_json(value: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse(ChatRequest, b'{"messages": [], "user": ' + value + b"}", False)
    assert refused.value.code == "invalid_json"


@pytest.mark.parametrize("value", [r'"\ud83d\ude00"', r'"\\ud800"'])
def test_whole_characters_in_escapes_are_text(value: str) -> None:
    hello = '{"role": "user", "content": ' + value + "}"
    found = parse(ChatRequest, f'\ufeff{{"messages": [{hello}]}}'.encode(), False)
    assert found.request.messages[0].content == json.loads(value)


DRAWN: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.5,
    "seed": 3,
    "repetition_penalty": 1.1,
}
OTHERS: dict[str, Any] = {"presence_penalty": 1.0, "frequency_penalty": 1.5, "cache_salt": "a", "stop": ["a"]}
OWN: dict[str, Any] = {"route": "code", "drafter": "ngram", "num_draft_tokens": 2, "banned_tokens": [3]}


def test_fields_called_like_a_parameter_are_that_parameter() -> None:
    body = json.dumps({"messages": [HELLO], **DRAWN, **OTHERS, "specexport": OWN}).encode()
    found = parameters(parse(ChatRequest, body, True).request, ServerSettings(), 64, 1, None)
    expected = {**DRAWN, **OTHERS, **OWN, "stop": ("a",), "banned_tokens": (3,)}
    assert {name: getattr(found, name) for name in expected} == expected
