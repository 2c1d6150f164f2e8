"""The Responses API: its items and events, whole and streamed, against chat completions and openai's types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from specexport.serve import ServerSettings
from specexport.serve.wire.body import parse
from specexport.serve.wire.responses.requests import ResponsesRequest
from specexport.serve.wire.responses.translate import as_chat
from support import thinking_templates as templates
from support.responses import PATH, bare, both, events, replayed, respond
from support.scripted import Scripted, scripted_session, tell
from support.serving import Client, served, slow_session, wait_for
from support.slow_server import CONTRACT

CHAT, COUNT = "/v1/chat/completions", f"{PATH}/input_tokens"
ATOMS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
TOOL = {"type": "function", "name": "tell", "parameters": AGE}
CHAT_TOOL = {"type": "function", "function": {"name": "tell", "parameters": AGE}}
CALL = '<tool_call>\n{"name": "tell", "arguments": {"age": 3}}\n</tool_call>'
THOUGHTS = "<think>\nWell then\n</think>\n\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """It may think, and writes what it is told."""
    session = scripted_session(tmp_path_factory.mktemp("model"), templates.QWEN, "assistant\n", atoms=ATOMS)
    with served(session) as client:
        yield client


def written(client: Client, text: str) -> None:
    tell(client.session, text)


def refused(client: Client, **fields: Any) -> tuple[str | None, str, str]:
    status, _, body = client.ask("POST", PATH, {"input": "Hello", **fields})
    error = json.loads(body)["error"]
    assert status == 400, body
    assert "\n" not in error["message"]
    return error["param"], error["code"], error["message"]


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("thoughts", ["", THOUGHTS])
def test_items_of_an_answer(model: Client, thoughts: str, k: int) -> None:
    """What the chat route says, item by item."""
    for text, fields in (("Hello you", {}), (CALL, {"tools": [TOOL]}), (f"Let me see.\n{CALL}", {"tools": [TOOL]})):
        written(model, thoughts + text)
        found = both(model, specexport={"num_draft_tokens": k}, **fields)
        tools = {"tools": [CHAT_TOOL]} if fields else {}
        chat = model.chat(temperature=0, **tools)
        message = chat["choices"][0]["message"]
        of_type = {item["type"]: item for item in found["output"]}
        expected = ["reasoning"] * bool(thoughts) + ["message"] * bool(message["content"])
        assert list(of_type) == expected + ["function_call"] * bool(message.get("tool_calls"))
        assert all(item["status"] == "completed" for item in found["output"])
        if thoughts:
            assert of_type["reasoning"]["content"] == [{"type": "reasoning_text", "text": "Well then"}]
        if message["content"]:
            assert of_type["message"]["content"][0]["text"] == message["content"]
        for call in message.get("tool_calls", []):
            ours = of_type["function_call"]
            assert (ours["name"], ours["arguments"]) == ("tell", call["function"]["arguments"])
        usage = found["usage"]
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert usage["output_tokens"] == chat["usage"]["completion_tokens"]
        details = chat["usage"]["completion_tokens_details"]
        assert usage["output_tokens_details"]["reasoning_tokens"] == details["reasoning_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        again = respond(model, **fields)["usage"]["input_tokens_details"]["cached_tokens"]
        assert again == usage["input_tokens"] - 1, "the last one is fed by the first round"


def test_what_is_cut_off_is_incomplete(model: Client) -> None:
    written(model, THOUGHTS + CALL)
    tokens = respond(model, tools=[TOOL])["usage"]["output_tokens"]
    kinds = set()
    for limit in range(1, tokens):
        found = both(model, tools=[TOOL], max_output_tokens=limit)
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert found["usage"]["output_tokens"] == found["max_output_tokens"] == limit
        assert [item["status"] for item in found["output"][:-1]] == ["completed"] * len(found["output"][:-1])
        kinds |= {(item["type"], item["status"]) for item in found["output"][-1:]}
    assert kinds == {("reasoning", "incomplete"), ("function_call", "incomplete")}
    found = both(model, tools=[TOOL], stop="age")
    assert (found["output"][-1]["status"], found["status"]) == ("incomplete", "incomplete")
    assert found["incomplete_details"] is None, "it was no limit"
    written(model, "Hello you")
    assert both(model, stop="you")["output"][0]["content"][0]["text"] == "Hello "


def test_an_empty_answer_has_a_message(model: Client) -> None:
    for text in ("", THOUGHTS):
        written(model, text)
        (*_, item) = both(model)["output"]
        assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_a_conversation_is_that_of_chat(model: Client) -> None:
    """Items of an answer, sent back as they are, give the prompt of the chat route."""
    written(model, f"{THOUGHTS}Let me see.\n{CALL}")
    answer = respond(model, tools=[TOOL])
    call = answer["output"][-1]
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        *answer["output"],
        {"type": "function_call_output", "call_id": call["call_id"], "output": "old"},
        {"type": "message", "role": "user", "content": "So?"},
    ]
    called = {"id": "c", "type": "function", "function": {"name": "tell", "arguments": call["arguments"]}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "reasoning_content": "Well then", "content": "Let me see.", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "old"},
        {"role": "user", "content": "So?"},
    ]
    written(model, "Yes")
    asked = {"input": history, "instructions": "Be kind.", "tools": [TOOL]}
    found = both(model, **asked)
    chat = model.chat(messages=messages, tools=[CHAT_TOOL], temperature=0)
    assert found["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] == chat["usage"]["prompt_tokens"] - 1
    status, headers, body = model.ask("POST", COUNT, {**asked, "odd": 1})
    assert (status, headers["x-specexport-ignored"]) == (200, "odd")
    assert json.loads(body) == {"object": "response.input_tokens", "input_tokens": chat["usage"]["prompt_tokens"]}
    for choice in ("none", "auto"):
        count = json.loads(model.ask("POST", COUNT, {**asked, "tool_choice": choice})[2])["input_tokens"]
        assert count == respond(model, **asked, tool_choice=choice)["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        (["u", "r", "a", "c", "c", "o", "o"], ["user", "assistant+r+a+c+c", "tool", "tool"]),
        (["u", "c", "a"], ["user", "assistant+c", "assistant+a"]),
        (["u", "a", "a"], ["user", "assistant+a", "assistant+a"]),
        (["u", "a", "r", "a"], ["user", "assistant+a", "assistant+r+a"]),
        (["u", "r", "r", "a"], ["user", "assistant+r+a"]),
    ],
)
def test_items_of_one_turn_are_one_message(items: list[str], roles: list[str]) -> None:
    forms: dict[str, dict[str, Any]] = {
        "u": {"role": "user", "content": "a"},
        "a": {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        "r": {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]},
        "c": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        "o": {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
    }
    body = json.dumps({"input": [forms[name] for name in items]}).encode()
    messages = as_chat(parse(ResponsesRequest, body, True)).request.messages
    told = []
    for message in messages:
        parts = ["r"] * bool(message.reasoning_content) + ["a"] * (message.content == "b")
        told.append("+".join([message.role, *parts, *["c" for _ in message.tool_calls or []]]))
    assert told == roles


def test_a_schema_holds(model: Client) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "age", "schema": AGE, "strict": True}
    for text in ('{"age":31}', "Thirty-one."):
        written(model, THOUGHTS + text)
        found = both(model, text={"format": form}, max_output_tokens=80)
        assert found["text"] == {"format": form}
        assert found["output"][-1]["content"][0]["text"].startswith('{"age":')
    with model.openai() as client:

        class Age(BaseModel):
            age: int

        written(model, '{"age":31}')
        parsed = client.responses.parse(model="", input="Hello", text_format=Age, temperature=0)
        assert parsed.output_parsed == Age(age=31)
        with client.responses.stream(model="", input="Hello", text_format=Age, temperature=0) as stream:
            assert stream.get_final_response().output_parsed == Age(age=31)


def test_log_probabilities(model: Client) -> None:
    """Those of the chat route, with the text."""
    written(model, f"{THOUGHTS}Yes, you")
    plain = {"num_draft_tokens": 0}
    asked: dict[str, Any] = {"top_logprobs": 2, "specexport": plain}
    chat = model.chat(temperature=0, logprobs=True, **asked)["choices"][0]["logprobs"]["content"]
    found = both(model, **asked)["output"][-1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in found] == [entry["token"] for entry in chat]
    assert all(len(entry["top_logprobs"]) == 2 for entry in found)
    deltas = [event for event in events(model, **asked) if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == found
    included = both(model, include=["message.output_text.logprobs", "reasoning.encrypted_content"], specexport=plain)
    assert [entry["token"] for entry in included["output"][-1]["content"][0]["logprobs"]] == [x["token"] for x in chat]
    assert respond(model)["output"][-1]["content"][0]["logprobs"] == []


def test_what_is_sampled_is_the_same(model: Client) -> None:
    """Options of the chat route have its effect."""
    written(model, "")
    options = {"temperature": 1.5, "top_p": 0.9, "top_k": 9, "seed": 5, "min_tokens": 20, "presence_penalty": 1}
    told = {"num_draft_tokens": 2}  # else the host's speed decides what a seed gives
    chat = model.chat(**options, max_tokens=30, specexport=told)["choices"][0]["message"]
    found = both(model, **options, max_output_tokens=30, specexport=told)
    assert found["output"][-1]["content"][0]["text"] == chat["content"]
    assert (found["temperature"], found["top_p"], found["store"]) == (1.5, 0.9, False)


def test_fields_of_clients(model: Client) -> None:
    """Accepted, and said as they are."""
    written(model, "Yes")
    for store in (True, False, None):
        told = {"store": store, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "user": "me"}
        told |= {"prompt_cache_key": "x", "truncation": "disabled", "stream_options": {"include_obfuscation": False}}
        found = both(model, **told, text={"verbosity": "low"}, background=False, previous_response_id=None)
        assert (found["store"], found["metadata"]) == (False, {"a": "b"})
    status, headers, _ = model.ask("POST", PATH, {"input": "Hello", "reasoning": {"effort": "low"}, "odd": 1})
    assert (status, headers["x-specexport-ignored"]) == (200, "odd, reasoning.effort")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"conversation": "conv_1"}, "conversation", "whole conversation"),
        ({"background": True}, "background", "nothing is stored"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "missing"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 3}, "strict": True}}}, "text.format", ""),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
        ({"tools": [{**TOOL, "parameters": {"required": 3}}]}, "tools[0].parameters", ""),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice", "'no'"),
        ({"specexport": {"show_drafts": True}}, "specexport.show_drafts", CHAT),
        ({"n": 2}, "n", "one answer"),
        ({"max_completion_tokens": 9}, "max_completion_tokens", "max_output_tokens"),
        ({"max_new_tokens": 9}, "max_new_tokens", "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"min_tokens": 9, "max_output_tokens": 5}, "min_tokens", "at most"),
        ({"input": []}, "input", ""),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "no message"),
        ({"input": [{"content": "a"}]}, "input[0].role", "missing"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "tool"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type", "store: false"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", "computer_call"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "input[0].content[0].type",
            "text only",
        ),
        (
            {"instructions": "a", "input": [{"type": "function_call_output", "call_id": "no", "output": "a"}]},
            "input[0].call_id",
            "no earlier call",
        ),
    ],
    ids=str,
)
def test_refusals_name_what_the_client_sent(model: Client, fields: dict[str, Any], param: str, words: str) -> None:
    found, _, message = refused(model, **fields)
    assert found == param
    assert words in message
    assert "messages[" not in message


def test_the_place_of_a_call(model: Client) -> None:
    deep: Any = 1
    for _ in range(80):
        deep = [deep]
    call = {"type": "function_call", "call_id": "a", "name": "tell", "arguments": json.dumps({"age": deep})}
    user = {"role": "user", "content": "a"}
    assert (
        refused(model, input=[user, {**call, "arguments": "{}"}, {**call, "call_id": "b"}])[0] == "input[2].arguments"
    )


def test_the_context(model: Client) -> None:
    param, code, message = refused(model, input="word " * 4000)
    assert (param, code) == ("input", "context_length_exceeded")
    assert "maximum context length is" in message


def test_a_failure_in_mid_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted_session(tmp_path / "failing", templates.QWEN, "assistant\n", atoms=ATOMS)
    tell(session, "abcdefgh")
    whole, count = Scripted.logits_after, 0

    def fails(decoder: Any, context: Any) -> Any:
        nonlocal count
        count += 1
        if count > 3:
            raise RuntimeError("broken")
        return whole(decoder, context)

    with served(session) as client:
        monkeypatch.setattr(Scripted, "logits_after", fails)
        found = events(client, specexport={"num_draft_tokens": 0})
        assert [event["type"] for event in found[-2:]] == ["error", "response.failed"]
        assert (found[-2]["code"], found[-1]["response"]["status"]) == ("engine_error", "failed")
        assert found[-1]["response"]["error"]["code"] == "server_error"
        assert any(event["type"] == "response.output_text.delta" for event in found)


def test_who_leaves_stops_the_answer(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT, 0.01)
    with served(session, ServerSettings(model="own")) as client, client.openai() as openai:
        stream = openai.responses.create(model="own", input="a", stream=True, extra_body={"min_tokens": 50})
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                break
        stream.close()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        wait_for(client.idle)
        assert client.metrics()["specexport:request_success_total"] == 1
        text = client.ask("GET", "/metrics")[2].decode()
        assert 'finished_reason="abort"' in text
        assert bare(replayed(events(client, max_output_tokens=3)))["status"] == "incomplete"
