"""Fields of other servers: none that narrows or changes what an answer may be is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from specexport.serve.wire.body import parse
from specexport.serve.wire.errors import ApiError
from specexport.serve.wire.known_fields import ANY, FIELDS, OF_MESSAGES, OTHER_NAMES
from specexport.serve.wire.requests import ChatRequest, CompletionRequest, TokenizeRequest
from support.refusals import refused

HELLO = {"role": "user", "content": "Hello"}
VALUES: list[Any] = ["x", 7, -7.5, True, False, [5], {"a": 1}]
CHAT_FIELDS = ChatRequest.__struct_fields__
OF_TEXTS = ("prompt", "add_special_tokens", "echo", "suffix")  # that completions honour or accept
NESTED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [HELLO, {"role": "assistant", "content": "Su", "prefix": True}]}, "messages[1].prefix"),
    ({"messages": [HELLO, {"role": "assistant", "content": "Su", "partial": True}]}, "messages[1].partial"),
    ({"messages": [HELLO, {**HELLO, "images": ["AAAA"]}]}, "messages[1].images"),
    (
        {"messages": [HELLO, {"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
        "messages[1].function_call",
    ),
    ({"response_format": {"type": "json_object", "grammar": "x"}}, "response_format.grammar"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
    ),
    (
        {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        "structured_outputs.disable_additional_properties",
    ),
]


# Fields of a conversation, under any name: refused where another API does not have them.
ELSEWHERE = {*CHAT_FIELDS, "max_new_tokens", "n_predict", "num_predict"}


def chat(strict: bool = False, **fields: Any) -> Any:
    return parse(ChatRequest, json.dumps({"messages": [HELLO], **fields}).encode(), strict)


def text(**fields: Any) -> Any:
    return parse(CompletionRequest, json.dumps({"prompt": "Hello", **fields}).encode(), False)


@pytest.mark.parametrize("name", sorted(name for name in FIELDS if "." not in name and name not in ELSEWHERE))
def test_what_changes_an_answer_is_refused_by_name(name: str) -> None:
    accepted, reason = OF_MESSAGES.get(name) or FIELDS[name]
    for value in (None, *accepted):
        assert chat(strict=True, **{name: "anything" if value is ANY else value}).ignored == []
    if ANY not in accepted:
        assert reason
        for value in VALUES:
            if not any(value == one and type(value) is type(one) for one in accepted):
                for parsed in (chat, *([] if name in OF_TEXTS else [text])):
                    with refused(ApiError, code="unsupported_parameter", field=name):
                        parsed(**{name: value})


@pytest.mark.parametrize(
    "name", ["mirostat", "best_of", "grammar", "bad_words", "echo", "system", "functions", "think"]
)
def test_names_that_must_be_in_the_table(name: str) -> None:
    assert name in FIELDS
    assert name not in OTHER_NAMES


@pytest.mark.parametrize(("fields", "name"), NESTED, ids=[name for _, name in NESTED])
def test_in_other_objects_too(fields: dict[str, Any], name: str) -> None:
    with refused(ApiError, code="unsupported_parameter", field=name):
        chat(**fields)


@pytest.mark.parametrize(
    "name",
    [
        *("grammar_string", "allowed_tokens", "guided_decoding", "structuredOutput", "banned_words", "constraints"),
        *("stops", "badword"),
        *("response_format.json_schema.regex", "structured_outputs.lark", "jsonSchema", "forced_decoder_ids"),
    ],
)
def test_a_name_that_is_not_known_and_seems_to_narrow_the_answer(name: str) -> None:
    def fields_with(value: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}
        fields["structured_outputs"] = {"regex": "a"}
        *objects, last = name.split(".")
        at = fields
        for one in objects:
            at = at[one]
        at[last] = value
        return {key: fields[key] for key in (objects or [last])[:1]}

    with refused(ApiError, code="unsupported_parameter", field=name):
        chat(**fields_with("x"))
    for nothing in (None, False, "", {}):
        assert chat(**fields_with(nothing)).ignored == []


def test_a_schema_of_what_a_tool_returns_narrows_nothing() -> None:
    tool = {"type": "function", "function": {"name": "f", "output_schema": {"type": "object"}}}
    assert chat(tools=[tool]).ignored == ["tools[0].function.output_schema"]


def test_true_is_not_one() -> None:
    with refused(ApiError, code="unsupported_parameter", field="best_of"):
        chat(best_of=True)


def test_where_special_tokens_are_added() -> None:
    """By the template in a conversation, by the tokenizer to a text."""
    assert text(add_special_tokens=True).ignored == []
    body = json.dumps({"prompt": "a", "add_special_tokens": True}).encode()
    assert parse(TokenizeRequest, body, True).ignored == []
    with pytest.raises(ApiError, match="give token ids as the prompt"):
        text(add_special_tokens=False)


def test_what_has_no_effect_on_an_answer_is_named_in_the_header() -> None:
    fields = {"cache_prompt": True, "keep_alive": "5m", "num_ctx": 2048, "snippy": {"enabled": False}, "priority": 1}
    assert chat(**fields).ignored == [*fields]
    fields = {"length_penalty": 2, "mirostat_tau": 5, "dry_base": 1.75}  # with an effect beside refused ones only
    assert chat(**fields).ignored == [*fields]
    assert chat(strict=True, user="u", metadata={"a": 1}).ignored == []


SAME: list[tuple[dict[str, Any], str, Any]] = [
    ({"repeat_penalty": 1.1}, "repetition_penalty", 1.1),
    ({"n_predict": 7}, "max_tokens", 7),
    ({"n_predict": -1}, "max_tokens", 2**31 - 1),
    ({"max_new_tokens": 7.0}, "max_tokens", 7),
    ({"max_output_tokens": 7, "max_tokens": 7}, "max_tokens", 7),
    ({"min_new_tokens": 2}, "min_tokens", 2),
    ({"stop_sequences": ["a"]}, "stop", ["a"]),
    ({"random_seed": 3}, "seed", 3),
    ({"ban_eos_token": True}, "ignore_eos", True),
    ({"json_schema": {"type": "object"}}, "structured_outputs.json", {"type": "object"}),
    ({"format": {"type": "object"}}, "structured_outputs.json", {"type": "object"}),
    ({"format": "json"}, "structured_outputs.json_object", True),
    ({"regex": "a+"}, "structured_outputs.regex", "a+"),
    ({"guided_choice": ["a", "b"]}, "structured_outputs.choice", ["a", "b"]),
    ({"n_predict": -1, "max_tokens": 7}, "max_tokens", 7),
    ({"format": "", "guided_choice": [], "regex": ""}, "structured_outputs", None),
]


@pytest.mark.parametrize(("fields", "name", "value"), SAME, ids=[str(fields) for fields, _, _ in SAME])
def test_other_names_of_what_is_here(fields: dict[str, Any], name: str, value: Any) -> None:
    for parsed in (chat(strict=True, **fields), text(**fields)):
        found: Any = parsed.request
        for step in name.split("."):
            found = getattr(found, step)
        assert found == value


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n_predict": 2**31}, "n_predict"),
    ({"n_predict": 3, "max_tokens": 4}, "n_predict"),
    ({"regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"json_schema": {}, "structured_outputs": {"regex": "a"}}, "json_schema"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
    ({"regex": 3}, "regex"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
]


@pytest.mark.parametrize(("fields", "name"), WRONG, ids=[str(fields) for fields, _ in WRONG])
def test_errors_name_the_field_as_it_was_given(fields: dict[str, Any], name: str) -> None:
    with refused(ApiError, name, field=name) as caught:
        chat(**fields)
    assert str(caught.value).startswith(name)


WHOLE: list[tuple[str, Any]] = [
    ("max_tokens", 3.0), ("max_completion_tokens", 3.0), ("seed", 1.0), ("seed", -1.0), ("top_k", 5.0), ("n", 1.0),
    ("min_tokens", 2.0), ("top_logprobs", 2.0), ("stop_token_ids", [3.0, 4]), ("specexport", {"num_draft_tokens": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WHOLE, ids=str)
def test_integers_with_a_point(name: str, value: Any) -> None:
    whole = json.loads(json.dumps(value).replace(".0", ""))
    wanted = chat(**{name: whole}).request
    assert chat(strict=True, **{name: value}).request == wanted
    assert repr(chat(**{name: value}).request) == repr(wanted)


def test_integers_with_a_point_in_prompts_and_counts_of_schemas() -> None:
    """Nothing else changes: a template shows tools, calls and its variables to the model."""
    assert repr(text(prompt=[1.0, 2]).request.prompt) == "[1, 2]"
    assert repr(text(prompt=[[1.0], [2]], logprobs=2.0).request.prompt) == "[[1], [2]]"
    schema = {"const": 1.0, "default": 2.0, "minimum": 2.5, "maximum": 1e300, "maxLength": 3.0}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1.0}}}
    request = chat(
        messages=[HELLO, {"role": "assistant", "tool_calls": [call]}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}],
        response_format={"type": "json_object", "schema": schema},
        chat_template_kwargs={"a": 2.0},
        max_tokens=3.0,
    ).request
    told = "{'const': 1.0, 'default': 2.0, 'minimum': 2.5, 'maximum': 1e+300, 'maxLength': 3}"
    assert repr(request.response_format.schema) == repr(request.tools[0].function.parameters) == told
    assert repr(request.messages[1].tool_calls[0].function.arguments) == "{'a': 1.0}"
    assert repr(request.chat_template_kwargs) == "{'a': 2.0}"
    assert request.max_tokens == 3


@pytest.mark.parametrize("value", [1.5, 1e30, "3", True])
def test_what_is_no_integer(value: Any) -> None:
    with refused(ApiError, field="max_tokens"):
        chat(max_tokens=value)


def test_a_byte_order_mark_is_skipped() -> None:
    body = json.dumps({"messages": [HELLO]}).encode("utf-8-sig")
    assert parse(ChatRequest, body, False).request == chat().request
