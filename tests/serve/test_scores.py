"""Scores over HTTP: echoed prompts with log-probabilities, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from specexport.bundle import Contract
from specexport.runtime.sampling.logprobs import TokenLogprobs
from specexport.runtime.session import Session
from specexport.serve.wire import translate
from specexport.serve.wire.logprobs import Characters, CompletionEntries, TokenTexts
from support.doubles import BOS, EOS, FakeDecoder, byte_tokenizer, fake_session
from support.serving import CHAT as TEMPLATE
from support.serving import Client, served, slow_session
from support.slow_server import leave_while_it_runs

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTRACT = Contract(capacity=128, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
PROMPTS = ["Grüße, 12 €", "a", "<eos>x<bos>", "Hello, world"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return fake_session(tmp_path_factory.mktemp("b"), FakeDecoder(CONTRACT, seed=2), None, (EOS,), TEMPLATE)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    target, draft = FakeDecoder(CONTRACT, seed=2), FakeDecoder(CONTRACT, seed=2, noise=0.5)
    with served(fake_session(tmp_path_factory.mktemp("a"), target, draft, (EOS,), TEMPLATE)) as client:
        yield client


def ask(client: Client, path: str = TEXT, **fields: Any) -> dict[str, Any]:
    status, _, body = client.ask("POST", path, {"temperature": 0, **fields})
    assert status == 200, body
    return json.loads(body)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_entries_of_an_echo(client: Client, reference: Session, prompt: str, count: int) -> None:
    """As lm-eval reads them: null first, then one for each token, the last one the answer's."""
    whole = ask(client, prompt=prompt, echo=True, logprobs=count, max_tokens=1)
    choice, tokens = whole["choices"][0], reference.encode(prompt)
    found = choice["logprobs"]
    answer = reference.generate(tokens, max_new_tokens=1, logprobs=count)
    scored = [*reference.score(tokens, likeliest=count).prompt_logprobs, *answer.logprobs]
    assert choice["text"] == prompt + answer.text
    assert found["token_logprobs"] == [None, *(pytest.approx(one.logprob, abs=1e-4) for one in scored)]
    assert [len(found[name]) for name in found] == [len(tokens) + 1] * 4
    assert found["top_logprobs"][0] is None
    for name, own, top in zip(found["tokens"][1:], found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True):
        assert top[name] == own
        assert len(top) in (max(count, 1), count + 1)
    assert whole["usage"]["prompt_tokens"] == len(tokens)
    Completion.model_validate({**whole, "choices": [{**choice, "logprobs": None}]}, strict=True)


def test_the_offsets_of_an_echo(client: Client) -> None:
    """Special tokens where the prompt spells them; parts of a character have its place."""
    found = ask(client, prompt="é<bos>b<eos>", echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert found["logprobs"]["text_offset"] == [0, 0, 1, 6, 7]
    assert found["text"] == "é<bos>b<eos>"


@pytest.mark.parametrize("ends", [{}, {"stop": ["a", "\ufffd\ufffd"]}, {"guided_regex": "[a-zé€]{3,12}"}])
def test_the_offsets_of_random_bytes(client: Client, ends: dict[str, Any]) -> None:
    """Each is where the token's text is, whole and in a stream."""
    for seed, prompt in enumerate([[97], [97, 0xE2], [98, 0xF0, 0x9F], [99]] * 2):
        likely = {str(byte): 4 + 2 * (seed * byte % 3) for byte in b"a\xe2\x82\xac\xf0\x9f\xff\xc3\xa9"}
        fields = {"temperature": 0, "max_tokens": 40, "logprobs": 0, "logit_bias": likely, **ends}
        fields["prompt"] = prompt[:1] if "guided_regex" in ends else prompt
        whole = ask(client, **fields)["choices"][0]
        found, text = whole["logprobs"], whole["text"]
        parts = [chunk["choices"][0]["logprobs"] for chunk in client.events(TEXT, fields)]
        streamed = [place for part in parts if part for place in part["text_offset"]]
        assert streamed == found["text_offset"]
        for name, place in zip(found["tokens"], found["text_offset"], strict=True):
            assert text[place : place + 1] == name or name.startswith(("bytes:", "<")), (text, found)


@pytest.mark.parametrize("echo", [False, True])
def test_the_offsets_behind_a_prompt_that_ends_within_a_character(client: Client, echo: bool) -> None:
    """Its text begins with U+FFFD for that character, also in a stream."""
    fields: dict[str, Any] = {
        "prompt": [97, 0xE2],
        "echo": echo,
        "logprobs": 0,
        "logit_bias": {"97": 100},
        "max_tokens": 2,
    }
    parts = [chunk["choices"][0] for chunk in client.events(TEXT, fields)]
    for choices in (parts, [ask(client, **fields)["choices"][0]]):
        assert "".join(one["text"] for one in choices) == "a\ufffd" * echo + "\ufffdaa"
        found = [place for one in choices for place in (one["logprobs"] or {"text_offset": []})["text_offset"]]
        assert found == ([0, 1, 3, 4] if echo else [1, 2])


def test_offsets_beside_what_a_tokenizer_adds() -> None:
    """A start token that the text does not spell, and what follows the prompt."""
    entries, texts = [TokenLogprobs(98, -1.0, (), 1)], TokenTexts(byte_tokenizer())
    rest = CompletionEntries(texts, Characters(texts))
    echoed = rest.echo([BOS, 97, 98], [TokenLogprobs(97, -1.0, (), 1), *entries], "ab", 0)
    assert echoed.text_offset == [0, 0, 1]
    assert rest.add(entries).text_offset == [2]


@pytest.mark.parametrize("fields", [{"logprobs": 2, "echo": True}, {"echo": True}, {"prompt_logprobs": 1}])
def test_no_tokens_at_all(client: Client, fields: dict[str, Any]) -> None:
    whole = ask(client, prompt="Hello", max_tokens=0, **fields)
    choice = whole["choices"][0]
    assert choice["text"] == ("Hello" if "echo" in fields else "")
    assert choice["finish_reason"] == "length"
    assert (choice["logprobs"] is not None) == ("logprobs" in fields)
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (5, 0)


def test_lists_and_ids(client: Client) -> None:
    ids = [list(prompt.encode()) for prompt in ("one", "two", "t")]
    texts = ask(client, prompt=["one", "two", "t"], echo=True, logprobs=1, max_tokens=2)
    assert ask(client, prompt=ids, echo=True, logprobs=1, max_tokens=2)["choices"] == texts["choices"]
    for place, prompt in enumerate(("one", "two", "t")):
        alone = ask(client, prompt=prompt, echo=True, logprobs=1, max_tokens=2)["choices"][0]
        assert texts["choices"][place] == {**alone, "index": place}


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_of_an_echo(client: Client, logprobs: int | None) -> None:
    fields: dict[str, Any] = {"prompt": "Grüße", "echo": True, "logprobs": logprobs, "temperature": 0}
    for count in (0, 1, 20):
        whole = ask(client, **fields, max_tokens=count)["choices"][0]
        parts = [chunk["choices"][0] for chunk in client.events(TEXT, {**fields, "max_tokens": count})]
        assert "".join(part["text"] for part in parts) == whole["text"]
        assert parts[0]["text"] == "Grüße"
        if logprobs is not None:
            for name, entries in whole["logprobs"].items():
                assert [one for part in parts for one in (part["logprobs"] or {name: []})[name]] == entries


def test_vllms_form(client: Client, reference: Session) -> None:
    whole = ask(client, prompt="Hello", prompt_logprobs=2, max_tokens=3)["choices"][0]
    scored = reference.score("Hello", likeliest=2).prompt_logprobs
    assert whole["prompt_logprobs"][0] is None
    for found, one in zip(whole["prompt_logprobs"][1:], scored, strict=True):
        assert found[str(one.token)]["rank"] == one.rank
        assert found[str(one.token)]["decoded_token"] == chr(one.token)
        assert len(found) == (2 if one.rank is not None and one.rank <= 2 else 3)
        assert sorted(entry["rank"] for entry in found.values())[:2] == [1, 2]
        for token, logprob in one.likeliest:
            assert found[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-4)
    both = ask(client, prompt="Hello", prompt_logprobs=1, echo=True, logprobs=3, max_tokens=1)["choices"][0]
    assert {len(one) for one in both["prompt_logprobs"][1:]} <= {1, 2}
    assert {len(one) for one in both["logprobs"]["top_logprobs"][1:]} <= {3, 4}
    both = ask(client, prompt="Hello", prompt_logprobs=3, echo=True, logprobs=1, max_tokens=1)["choices"][0]
    assert {len(one) for one in both["logprobs"]["top_logprobs"][1:]} <= {1, 2}
    messages = [{"role": "user", "content": "Hi"}]
    chat = ask(client, CHAT, messages=messages, prompt_logprobs=0, max_tokens=2)
    ids = json.loads(client.ask("POST", "/tokenize", {"messages": messages})[2])["tokens"]
    assert [next(iter(one)) for one in chat["prompt_logprobs"][1:]] == [str(token) for token in ids[1:]]
    assert "prompt_logprobs" not in ask(client, CHAT, messages=messages, max_tokens=2)
    assert "prompt_logprobs" not in ask(client, prompt="Hi", max_tokens=2)["choices"][0]


def test_an_echo_is_written_off_the_event_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    loops, echo = [], CompletionEntries.echo

    def told(*values: Any) -> Any:
        loops.append(asyncio._get_running_loop())
        return echo(*values)

    monkeypatch.setattr(CompletionEntries, "echo", told)
    for count in (0, 2):
        client.events(TEXT, {"prompt": "Hello", "echo": True, "logprobs": 1, "max_tokens": count})
        ask(client, prompt="Hello", echo=True, logprobs=1, max_tokens=count)
    assert loops == [None] * 4


def test_what_all_scores_take_has_a_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all answers to all prompts, each of whose tokens has its own and the likeliest."""
    monkeypatch.setattr(translate, "MAX_SCORES", 2 * 2 * 6 * 3)
    fields: dict[str, Any] = {"prompt": ["Hello", "World"], "n": 2, "echo": True, "max_tokens": 1}
    tokens = len(json.loads(client.ask("POST", "/tokenize", {"prompt": "Hello"})[2])["tokens"])
    most = 2 * 2 * 6 * 3 // (4 * tokens) - 1
    ask(client, **fields, logprobs=most)
    for more, param in (({"logprobs": most + 1}, "prompt"), ({"prompt_logprobs": 20}, "prompt")):
        client.refused(TEXT, {**fields, **more}, param=param)
    ask(client, prompt="Hello" * 8, logprobs=20, max_tokens=1)  # of the answer alone


def test_a_stop_token_after_an_echo_has_an_entry(client: Client) -> None:
    """lm-eval cuts off the last one, whatever the token is."""
    forced: dict[str, Any] = {"logit_bias": {str(EOS): 100}, "max_tokens": 1, "prompt": "Hello", "logprobs": 1}
    echoed = ask(client, **forced, echo=True)["choices"][0]
    assert (echoed["text"], echoed["finish_reason"]) == ("Hello", "stop")
    assert echoed["logprobs"]["tokens"][-1] == "<eos>"
    assert len(echoed["logprobs"]["tokens"]) == 6
    assert ask(client, **forced)["choices"][0]["logprobs"]["tokens"] == []


def test_speculation_changes_nothing(client: Client) -> None:
    for prompt in PROMPTS:
        fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 12, "stop_token_ids": []}
        plain, drafted = (ask(client, **fields, specexport={"num_draft_tokens": k})["choices"][0] for k in (0, 4))
        assert drafted == plain


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "", "echo": True, "logprobs": 1}, "prompt"),
        ({"prompt": "x" * 128, "echo": True, "logprobs": 1, "max_tokens": 0}, "prompt"),
        ({"prompt": [], "echo": True, "logprobs": 1}, "prompt"),
    ],
)
def test_what_is_refused(client: Client, fields: dict[str, Any], param: str) -> None:
    client.refused(TEXT, {"prompt": "Hello", **fields}, param=param)


@pytest.mark.parametrize(("fields", "least"), [({}, 1), ({"echo": True, "logprobs": 1}, 0)])
@pytest.mark.parametrize("name", ["max_tokens", "n_predict"])
def test_the_least_number_of_tokens_is_told(client: Client, fields: dict[str, Any], least: int, name: str) -> None:
    error = client.refused(TEXT, {"prompt": "Hello", name: -3, **fields}, param=name)
    assert f" {least} " in error["message"]


def test_leaving_while_a_prompt_is_scored(tmp_path: Path) -> None:
    session, decoder = slow_session(tmp_path, CONTRACT)
    with served(session) as client:
        leave_while_it_runs(client, session, decoder, prompt="x" * 100, echo=True, logprobs=1, max_tokens=1)
        assert sum(count for count, _ in decoder.steps) < 99, "it went on for nobody"
        assert ask(client, prompt="x" * 100, echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
