"""Models that think, over the API: thoughts apart from the answer, and grammars that begin behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import thinking_templates as templates
from support.scripted import scripted_session, tell
from support.serving import Client, served

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"schema": AGE, "strict": True}}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "tell", "parameters": AGE}}]}
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
QWEN_CALL = '<tool_call>\n{"name": "tell", "arguments": {"age": 3}}\n</tool_call>'
MISTRAL_CALL = '[TOOL_CALLS]tell[ARGS]{"age": 3}'
# (what the model writes in front of an answer, a call in its form)
MODELS = {
    "may": ("<think>\n{T}\n</think>\n\n", QWEN_CALL),
    "opened": ("{T}\n</think>\n\n", QWEN_CALL),
    "special": ("[THINK]{T}[/THINK]", MISTRAL_CALL),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "special":
        special = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
        session = scripted_session(root, templates.MISTRAL, "Hello[/INST]", special=special)
    else:
        template = templates.QWEN if request.param == "may" else templates.OPENED
        opened = "<think>\n" if request.param == "opened" else ""
        session = scripted_session(root, template, f"assistant\n{opened}", atoms=MARKERS)
    with served(session) as client:
        client.thinks, client.call = MODELS[request.param]  # type: ignore[attr-defined]
        yield client


def written(client: Client, thoughts: str, answer: str) -> str:
    text = client.thinks.replace("{T}", thoughts) + answer  # type: ignore[attr-defined]
    tell(client.session, text)
    return text


def tokens_of(client: Client, text: str) -> int:
    return len(client.session.tokenizer.encode(text, add_special_tokens=False).ids)


def ask(client: Client, k: int = 4, **fields: Any) -> dict[str, Any]:
    """The first choice; the stream is the same."""
    fields = {"temperature": 0, "specexport": {"num_draft_tokens": k}, "max_tokens": 300, **fields}
    whole = client.chat(**fields)["choices"][0]
    message = whole["message"]
    deltas = [
        chunk["choices"][0]["delta"] for chunk in client.events(CHAT, {"messages": HELLO, **fields}) if chunk["choices"]
    ]
    joined = {
        name: "".join(delta.get(name) or "" for delta in deltas) or None for name in ("content", "reasoning_content")
    }
    assert joined["content"] == (message["content"] or None)
    assert joined["reasoning_content"] == message.get("reasoning_content")
    arguments = "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls") or [])
    assert arguments == "".join(call["function"]["arguments"] for call in message.get("tool_calls", []))
    return dict(whole)


THOUGHTS = 'If {"age": 4}, <tool_call> or\n[TOOL\n'


@pytest.mark.parametrize("k", [0, 1, 3, 4])
def test_a_schema_holds_behind_the_thoughts(model: Client, k: int) -> None:
    written(model, THOUGHTS, '{"age":31}')
    found = ask(model, k, **SCHEMA)
    assert found["message"]["reasoning_content"] == THOUGHTS.strip()
    assert found["message"]["content"] == '{"age":31}'
    assert found["finish_reason"] == "stop"
    written(model, THOUGHTS, "Well, thirty-one.")
    found = ask(model, k, **SCHEMA)
    assert found["message"]["reasoning_content"] == THOUGHTS.strip()
    if found["finish_reason"] == "stop":
        jsonschema.validate(json.loads(found["message"]["content"]), AGE)
    assert found["message"]["content"].startswith("{")


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "tell"}}], ids=str)
def test_tools_behind_the_thoughts(model: Client, choice: Any, k: int) -> None:
    written(model, THOUGHTS, model.call)  # type: ignore[attr-defined]
    found = ask(model, k, **TOOLS, tool_choice=choice)
    message = found["message"]
    assert message["reasoning_content"] == THOUGHTS.strip()
    assert message["content"] is None
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"age": 3}']
    assert found["finish_reason"] == "tool_calls"


def test_tools_that_are_not_called_change_nothing(model: Client) -> None:
    text = written(model, THOUGHTS, "No.")
    alone = ask(model)
    assert (alone["message"]["content"], alone["message"]["reasoning_content"]) == ("No.", THOUGHTS.strip())
    for k in (0, 4):
        assert ask(model, k, **TOOLS)["message"] == alone["message"]
    tell(model.session, text.partition("{")[0])
    unfinished = ask(model)
    assert (unfinished["message"]["content"], unfinished["message"]["reasoning_content"]) == ("", "If")
    assert ask(model, **TOOLS)["message"] == unfinished["message"]


def test_thoughts_that_are_cut(model: Client) -> None:
    text = written(model, "abcdefgh", '{"age":31}')
    head = tokens_of(model, text.partition("a")[0])
    for limit in range(1, 9):
        found = ask(model, **SCHEMA, max_tokens=limit)
        assert (found["message"]["content"], found["finish_reason"]) == ("", "length")
        assert found["message"].get("reasoning_content", "") == "abcdefgh"[: max(0, limit - head)]


def test_tokens_of_thoughts_are_counted(model: Client) -> None:
    """With those of the markers around them, and not of the gap behind."""
    text = written(model, "abcdefgh", "Yes")
    for k in (0, 4):
        usage = model.chat(temperature=0, specexport={"num_draft_tokens": k})["usage"]
        thoughts = text.removesuffix("Yes").rstrip("\n")
        assert usage["completion_tokens_details"]["reasoning_tokens"] == tokens_of(model, thoughts)
        assert usage["completion_tokens"] == tokens_of(model, text) + 1


def test_log_probabilities_of_markers_come_with_the_next_text(model: Client) -> None:
    """A token that adds nothing to the answer makes no chunk of its own."""
    written(model, "ab", "Yes")
    asked = {"temperature": 0, "max_tokens": 300, "logprobs": True, "specexport": {"num_draft_tokens": 0}}
    whole = model.chat(**asked)["choices"][0]["logprobs"]["content"]
    chunks = [chunk["choices"][0] for chunk in model.events(CHAT, {"messages": HELLO, **asked})]
    assert chunks[0]["delta"] == {"role": "assistant", "content": None}
    assert all(chunk["delta"].get("content") != "" for chunk in chunks)
    entries = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
    assert [entry["token"] for entry in entries] == [entry["token"] for entry in whole]
    cut = model.events(CHAT, {"messages": HELLO, **asked, "max_tokens": len(whole) - len("Yes")})
    left = [entry for chunk in cut for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(left) == len(whole) - len("Yes")


def test_thoughts_of_a_history_are_the_templates(model: Client) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Yes", "reasoning_content": "Hm <think>"}, *HELLO]
    status, headers, body = model.ask("POST", "/tokenize", {"messages": messages})
    assert status == 200, body
    assert "x-specexport-ignored" not in headers
    text = model.session.tokenizer.decode(json.loads(body)["tokens"], skip_special_tokens=False)
    assert ("Hm <think>" in text) == ("[THINK]" not in model.thinks)  # type: ignore[attr-defined]


def test_a_prompt_that_has_ended_it(tmp_path: Path) -> None:
    """As of templates that are told not to think: the grammar begins at once."""
    template = templates.OPENED.replace("<think>\\n' }}{% endif", "<think>\\n\\n</think>\\n\\n' }}{% endif")
    assert template != templates.OPENED
    session = scripted_session(tmp_path, template, "assistant\n<think>\n\n</think>\n\n", atoms=MARKERS)
    with served(session) as client:
        tell(session, "<think>Hm</think>\n\nYes")
        assert ask_plain(client)["content"] == "<think>Hm</think>\n\nYes"
        assert ask_plain(client, **SCHEMA, max_tokens=4)["content"].startswith("{")


def ask_plain(client: Client, **fields: Any) -> dict[str, Any]:
    return dict(client.chat(temperature=0, **fields)["choices"][0]["message"])
