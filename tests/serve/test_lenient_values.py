"""Values that other servers take: no end token, the likeliest token alone, refusals, many prompts and stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.scripted import scripted_session, tell
from support.serving import ServerProcess, served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def test_ignore_eos_goes_on_behind_the_end(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, TEMPLATE, "<assistant>")
    with served(session) as client:
        tell(session, "Hi.")
        hello = [{"role": "user", "content": "Hello"}]
        third = session.encode("Hi.")[-1]
        for fields, count, reason in (
            ({}, 4, "stop"),
            ({"ignore_eos": False}, 4, "stop"),
            ({"ignore_eos": True}, 20, "length"),
            ({"ignore_eos": True, "stop": "i."}, 3, "stop"),
            ({"ignore_eos": True, "stop_token_ids": [third]}, 3, "stop"),  # those are kept
        ):
            found = client.chat(messages=hello, **{"temperature": 0, "max_tokens": 20, **fields})
            assert found["choices"][0]["message"]["content"].startswith("H")
            assert found["usage"]["completion_tokens"] == count
            assert found["choices"][0]["finish_reason"] == reason


def test_top_p_of_0_is_the_likeliest_token(server: ServerProcess) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "stop_token_ids": []}
    greedy = server.chat(temperature=0, **fields)["choices"]
    for seed in range(3):
        assert server.chat(top_p=0, temperature=2, seed=seed, **fields)["choices"] == greedy
    assert server.chat(top_p=0.0, **fields)["choices"] == greedy


def content(server: ServerProcess, message: dict[str, Any]) -> list[int]:
    hello = {"role": "user", "content": "Hello"}
    status, _, body = server.ask("POST", "/tokenize", {"messages": [hello, message, hello]})
    assert status == 200, body
    found: list[int] = json.loads(body)["tokens"]
    return found


@pytest.mark.parametrize(
    "refusing",
    [
        {"content": None, "refusal": "No."},
        {"refusal": "No."},
        {"content": "", "refusal": "No."},
        {"content": [{"type": "refusal", "refusal": "No."}]},
        {"content": "No.", "refusal": None},
    ],
    ids=str,
)
def test_a_refusal_is_what_the_assistant_said(server: ServerProcess, refusing: dict[str, Any]) -> None:
    said = content(server, {"role": "assistant", "content": "No."})
    assert content(server, {"role": "assistant", **refusing}) == said


def test_a_refusal_without_its_text(server: ServerProcess) -> None:
    message = {"role": "assistant", "content": [{"type": "refusal", "text": "No."}]}
    server.refused(CHAT, {"messages": [message]}, param="messages[0].content[0].refusal")


def test_thoughts_that_were_cut_off_are_all_that_was_said(server: ServerProcess) -> None:
    """A stream that ends within them has no content, and its client sends that back."""
    said = content(server, {"role": "assistant", "content": ""})
    for name in ("reasoning_content", "reasoning"):
        assert content(server, {"role": "assistant", "content": None, name: "Hm"}) == said


def test_64_prompts(server: ServerProcess) -> None:
    status, _, body = server.ask("POST", TEXT, {"prompt": ["a"] * 64, "max_tokens": 1})
    assert status == 200
    assert [choice["index"] for choice in json.loads(body)["choices"]] == list(range(64))


def test_hundreds_of_stops(server: ServerProcess) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "stop_token_ids": []}
    text = server.chat(**fields)["choices"][0]["message"]["content"]
    place = next(place for place in range(5, len(text)) if "\ufffd" not in text[place : place + 3])
    stops = [f"never {number}" for number in range(500)] + [text[place : place + 3]]
    found = server.chat(**fields, stop=stops)["choices"][0]
    assert found["finish_reason"] == "stop"
    assert found["message"]["content"] == text[: text.index(stops[-1])]
