"""`suffix`: completions of a gap, by a tokenizer that has tokens for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specexport.runtime.text.infill import MARKS
from support.doubles import EOS, FakeDecoder, fake_session
from support.scripted import scripted_session, tell
from support.serving import CHAT as TEMPLATE
from support.serving import Client, served

TEXT = "/v1/completions"
END = "<|fim_pad|>"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    session = scripted_session(tmp_path_factory.mktemp("a"), TEMPLATE, MARKS[0][2], special=(*MARKS[0], END))
    tell(session, f"a, b{END}c")
    with served(session) as client:
        yield client


def ask(client: Client, **fields: Any) -> dict[str, Any]:
    status, _, body = client.ask("POST", TEXT, {"temperature": 0, "max_tokens": 40, **fields})
    assert status == 200, body
    return json.loads(body)


@pytest.mark.parametrize("speculate", [False, True])
def test_the_middle_ends_at_a_mark(client: Client, speculate: bool) -> None:
    fields = {"prompt": "def f(", "suffix": "):", "specexport": {"speculate": speculate}}
    whole = ask(client, **fields)
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("a, b", "stop")
    assert whole["usage"]["prompt_tokens"] == len("def f():") + 3
    text = f"{MARKS[0][0]}def f({MARKS[0][1]}):{MARKS[0][2]}"
    by_hand = ask(client, prompt=text, stop=[], specexport={"speculate": speculate})["choices"][0]["text"]
    assert by_hand.startswith("a, bc")
    parts = [chunk["choices"][0]["text"] for chunk in client.events(TEXT, {"temperature": 0, **fields})]
    assert "".join(parts) == "a, b"


def test_what_a_request_says_of_the_end_holds(client: Client) -> None:
    assert ask(client, prompt="x", suffix="y", stop=",")["choices"][0]["text"] == "a"
    assert ask(client, prompt="x", suffix="y", ignore_eos=True)["choices"][0]["text"].startswith("a, bc")
    ended = ask(client, prompt="x", suffix="y", stop_token_ids=[ord("b")])["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == ("a, ", "stop")


def test_several_prompts_and_answers(client: Client) -> None:
    whole = ask(client, prompt=["x", "xy"], suffix="z", n=2)
    assert [choice["text"] for choice in whole["choices"]] == ["a, b"] * 4
    assert whole["usage"]["prompt_tokens"] == 5 + 6
    assert ask(client, prompt="", suffix="z")["choices"][0]["text"] == "a, b"
    for nothing in ("", None):
        assert ask(client, prompt="x", suffix=nothing)["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": [1, 2]}, "suffix", "invalid_value"),
        ({"prompt": "x", "echo": True}, "suffix", "invalid_value"),
        ({"prompt": "x" * 3000}, "prompt", "context_length_exceeded"),
        ({"prompt": "x", "suffix": "y" * 3000}, "prompt", "context_length_exceeded"),
        ({"prompt": "x", "suffix": 3}, "suffix", "invalid_value"),
    ],
)
def test_what_is_refused(client: Client, fields: dict[str, Any], param: str, code: str) -> None:
    client.refused(TEXT, {"suffix": "z", **fields}, code, param)


def test_a_model_without_such_tokens(tmp_path: Path) -> None:
    with served(fake_session(tmp_path, FakeDecoder(), None, (EOS,))) as client:
        client.refused(TEXT, {"prompt": "x", "suffix": "y"}, "unsupported_parameter", "suffix")
