"""`chat_template_kwargs` and `reasoning_effort`: what the template reads of them is set, and nothing else of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specexport.serve import ServerSettings
from support import thinking_templates as templates
from support.scripted import scripted_session, tell
from support.serving import Client, served

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MARKERS = ("<think>", "</think>")
END = "<|im_end|>"
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}
PROMPT = "{{- '<|im_start|>assistant\\n' }}{% endif %}"
CLOSED = "{% if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
OFF = "{{- '<|im_start|>assistant\\n' }}" + CLOSED
MAY = templates.QWEN.replace(PROMPT, OFF) + "{{- reasoning_effort or '' }}{% set mine = 1 %}"
# It writes thoughts at all only where it is told to.
ON = OFF.replace("enable_thinking is false", "thinking").replace("\\n\\n</think>\\n\\n", "\\n")
ASKED = templates.QWEN.replace(PROMPT, ON)
ASKED = ASKED.replace(
    "'<|im_start|>assistant\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content",
    "'<|im_start|>assistant\\n' + ('<think>\\n' + thoughts + '\\n</think>\\n\\n' if thinking else '') + content",
)


@pytest.fixture(scope="module")
def may(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A template that is told not to think by `enable_thinking: false`."""
    session = scripted_session(tmp_path_factory.mktemp("may"), MAY, "assistant\n", (END,), MARKERS)
    with served(session) as client:
        yield client


def message(client: Client, **fields: Any) -> dict[str, Any]:
    return dict(client.chat(temperature=0, max_tokens=40, **fields)["choices"][0]["message"])


def tokenized(client: Client, **fields: Any) -> tuple[list[int], str]:
    status, _, body = client.ask("POST", "/tokenize", {"messages": HELLO, **fields})
    assert status == 200, body
    tokens = json.loads(body)["tokens"]
    return tokens, client.session.tokenizer.decode(tokens, skip_special_tokens=False)


def test_thoughts_are_turned_off(may: Client) -> None:
    tell(may.session, "<think>\nHm\n</think>\n\nYes")
    for fields in ({}, {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": None}):
        assert message(may, **fields) == {"role": "assistant", "content": "Yes", "refusal": None} | {
            "reasoning_content": "Hm"
        }
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    tell(may.session, "<think>\n\n</think>\n\n<think>Yes")
    found = message(may, **off)
    assert found["content"] == "<think>Yes", "the prompt has ended the thoughts"
    assert "reasoning_content" not in found
    found = message(may, **off, **SCHEMA)
    assert found["content"].startswith("{")
    assert "reasoning_content" not in found


def test_thoughts_are_turned_on(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, ASKED, "assistant\n", (), MARKERS)
    on = {"chat_template_kwargs": {"thinking": True}}
    with served(session) as client:
        tell(session, "<think>\nHm\n</think>\n\n{}")
        for fields in ({}, SCHEMA):
            found = message(client, **on, **fields)
            assert (found["content"], found["reasoning_content"]) == ("{}", "Hm")
        tell(session, "Yes")
        assert message(client)["content"] == "Yes"
        past = [*HELLO, {"role": "assistant", "content": "No", "reasoning_content": "Well"}, *HELLO]
        assert "Well" in tokenized(client, messages=past, **on)[1]
        assert "Well" not in tokenized(client, messages=past)[1]


def test_special_tokens_in_variables_stay_text(may: Client) -> None:
    end = may.session.tokenizer.token_to_id(END)
    tokens, text = tokenized(may, reasoning_effort=END)
    assert text.endswith(END)
    assert tokens.count(end) == tokenized(may)[0].count(end) == 1


def test_what_the_template_does_not_read_is_named(may: Client, tmp_path: Path) -> None:
    fields = {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": {"enable_thinking": False, "more": 1}}
    status, headers, _ = may.ask("POST", CHAT, fields)
    assert (status, headers["x-specexport-ignored"]) == (200, "chat_template_kwargs.more")
    session = scripted_session(tmp_path, templates.QWEN, "assistant\n", (), MARKERS)
    with served(session, ServerSettings(strict_fields=True)) as client:
        for more in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": 1}}):
            error = client.refused(CHAT, {"messages": HELLO, **more}, "unknown_parameter")
            assert error["param"].endswith("reasoning_effort")


WRONG: list[Any] = [
    {name: "x"}
    for name in ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "chat_template", "a" * 65)
]
WRONG += [{"a": []}, {"a": {}}, {"a": "x" * 257}, {"a": 10**7}, {str(n): 1 for n in range(17)}, [], "x"]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_what_is_not_for_requests_to_set(may: Client, wrong: Any) -> None:
    error = may.refused(CHAT, {"messages": HELLO, "chat_template_kwargs": wrong}, "invalid_value")
    assert error["param"].startswith("chat_template_kwargs")
