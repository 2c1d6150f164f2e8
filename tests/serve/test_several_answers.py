"""`n` answers to one prompt: each as a request of its own would give it, the prompt read once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from specexport.bundle import Contract
from specexport.runtime.session import Session
from support.doubles import EOS, FakeDecoder, fake_session
from support.serving import CHAT as TEMPLATE
from support.serving import Client, served, slow_session
from support.slow_server import leave_while_it_runs

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTRACT = Contract(capacity=128, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
PROMPT = "A prompt of 22 bytes.."
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 2**63 - 2, "max_tokens": 14, "logprobs": 1}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    target, draft = FakeDecoder(CONTRACT, seed=2), FakeDecoder(CONTRACT, seed=2, noise=0.5)
    return fake_session(tmp_path_factory.mktemp("a"), target, draft, (EOS,), TEMPLATE, prompt_cache_bytes=1 << 20)


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[Client]:
    with served(session) as client:
        yield client


def ask(client: Client, path: str = TEXT, **fields: Any) -> dict[str, Any]:
    status, _, body = client.ask("POST", path, fields)
    assert status == 200, body
    return json.loads(body)


def alone(client: Client, **fields: Any) -> dict[str, Any]:
    return ask(client, **fields)["choices"][0]


@pytest.mark.parametrize("speculate", [False, True])
def test_each_is_that_of_the_next_seed(client: Client, speculate: bool) -> None:
    """Past the largest number that a request may name, too."""
    fields = {"prompt": PROMPT, **SAMPLED, "specexport": {"speculate": speculate}}
    found = ask(client, **fields, n=4)["choices"]
    assert [choice["index"] for choice in found] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in found}) == 4
    for turn, seed in enumerate((2**63 - 2, 2**63 - 1, -(2**63), -(2**63) + 1)):
        assert found[turn] == {**alone(client, **fields | {"seed": seed}), "index": turn}


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_p": 0}])
def test_greedy_answers_are_equal(client: Client, fields: dict[str, Any]) -> None:
    found = ask(client, prompt=PROMPT, **fields, max_tokens=20, n=3)["choices"]
    assert len({choice["text"] for choice in found}) == 1
    assert len({choice["text"] for choice in ask(client, prompt=PROMPT, max_tokens=20, n=16)["choices"]}) == 16


def test_the_prompt_is_read_and_counted_once(client: Client, session: Session) -> None:
    steps = session.engine.target.steps  # type: ignore[attr-defined]
    del steps[:]
    found = ask(client, prompt=[PROMPT + "one", PROMPT + "two"], max_tokens=5, n=3, stop_token_ids=[], temperature=1)
    prompt_tokens = 2 * (len(PROMPT) + 3)
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, 2 * 3 * 5)
    assert usage["total_tokens"] == prompt_tokens + 30
    assert usage["prompt_tokens_details"]["cached_tokens"] < prompt_tokens
    assert [choice["index"] for choice in found["choices"]] == list(range(6))
    read = [position for _, position in steps if position < len(PROMPT)]
    assert len(read) <= 6, "the passes over the first prompt"


def test_a_stream_has_the_index_of_each(client: Client) -> None:
    for path, prompt in ((TEXT, {"prompt": PROMPT}), (CHAT, {"messages": [{"role": "user", "content": "Hi"}]})):
        fields = {**prompt, **SAMPLED, "n": 3, "stream_options": {"include_usage": True}}
        fields |= {"logprobs": True, "top_logprobs": 1} if path == CHAT else {}
        whole = ask(client, path, **{name: value for name, value in fields.items() if name != "stream_options"})
        *chunks, last = client.events(path, fields)
        for choice in whole["choices"]:
            parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
            said = [part["text"] if path == TEXT else part["delta"].get("content", "") for part in parts]
            assert "".join(said) == (choice["text"] if path == TEXT else choice["message"]["content"])
            assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
            assert path == TEXT or [part for part in parts if "role" in part["delta"]] == parts[:1]
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_stops_schemas_and_types_hold_for_each(client: Client) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": list("bcdefghi")}}}
    whole = ask(client, CHAT, messages=[{"role": "user", "content": "Hi"}], n=5, seed=1, response_format=format)
    assert {choice["message"]["content"] for choice in whole["choices"]} <= {f'"{letter}"' for letter in "bcdefghi"}
    assert len({choice["message"]["content"] for choice in whole["choices"]}) > 1
    ChatCompletion.model_validate(whole, strict=True)
    text = ask(client, prompt=PROMPT, temperature=0, max_tokens=20)["choices"][0]["text"]
    stopped = ask(client, prompt=PROMPT, temperature=0, max_tokens=20, n=3, stop=text[4])
    assert [choice["text"] for choice in stopped["choices"]] == [text[: text.index(text[4])]] * 3
    Completion.model_validate(stopped, strict=True)


def test_an_echo_is_scored_once(client: Client, session: Session) -> None:
    fields = {"prompt": "Scored", "echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0}
    steps = session.engine.target.steps  # type: ignore[attr-defined]
    del steps[:]
    found = ask(client, **fields, n=3)["choices"]
    assert len({json.dumps({**choice, "index": 0}) for choice in found}) == 1
    assert sum(position == 0 for _, position in steps) == 1
    assert found[2] == {**alone(client, **fields), "index": 2}


def test_leaving_ends_all_of_them(tmp_path: Path) -> None:
    session, decoder = slow_session(tmp_path, CONTRACT)
    with served(session) as client:
        leave_while_it_runs(client, session, decoder, prompt="x", n=16, max_tokens=50, temperature=0)
        assert len(decoder.steps) < 50
        assert client.metrics()["specexport:generation_tokens_total"] < 50
