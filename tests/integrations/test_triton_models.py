"""What runs in Triton, over a fake of its module: every request is answered, whatever it asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.errors import EngineError
from specexport.integrations.triton import streams
from specexport.integrations.triton.streams import Streams, share_of_cores
from specexport.runtime.session import Session
from support.doubles import FakeDecoder, fake_session
from support.fake_triton import INTERNAL, INVALID_ARG, FakeTriton, InferenceResponse, Request, Sender
from support.refusals import says
from support.serving import PATIENCE, wait_for

ROOM = Contract(capacity=600, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
ARGS = {"model_name": "demo", "model_instance_name": "demo_0_0"}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return fake_session(tmp_path / "b", FakeDecoder(ROOM), FakeDecoder(ROOM, noise=0.4), chat_template=CHAT)


@pytest.fixture
def triton(session: Session) -> FakeTriton:
    """A server with the model `demo` over `session`, and with `demo_whole`."""
    from specexport.integrations.triton.models import WholeAnswers

    fake = FakeTriton()
    fake.models["demo"] = Streams(fake.module, session, ARGS)
    fake.models["demo_whole"] = WholeAnswers(fake.module, "demo")
    return fake


def text_of(responses: list[InferenceResponse]) -> str:
    return "".join(response.texts["text_output"] for response in responses)


def error_of(response: InferenceResponse) -> tuple[str, str]:
    error = response.error()
    assert error is not None
    assert response.output_tensors() == []
    return error.message(), error.code()


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8, "seed": 3}, {"stop": "a", "speculate": False}, {"logit_bias": {"97": 5}}]
)
def test_a_round_is_a_response_and_together_they_are_the_answer(
    triton: FakeTriton, session: Session, options: dict[str, Any]
) -> None:
    [responses] = triton.ask("demo", Request("Hello", {"max_new_tokens": 40, **options}))
    biased = {"logit_bias": {97: 5}} if "logit_bias" in options else {}
    expected = session.generate("Hello", max_new_tokens=40, **(options | biased))
    assert text_of(responses) == expected.text
    assert [set(response.texts) for response in responses[:-1]] == [{"text_output"}] * (len(responses) - 1)
    last = responses[-1].texts
    assert last["finish_reason"] == expected.finish_reason
    statistics = json.loads(last["statistics"])
    assert statistics["rounds"] == len(responses)
    assert statistics["emitted"] == len(expected.tokens)


def test_the_model_that_answers_once_gives_the_same(triton: FakeTriton) -> None:
    asked = {"max_new_tokens": 40}
    [streamed] = triton.ask("demo", Request("Hello", asked))
    [[whole]] = triton.ask("demo_whole", Request("Hello", asked))
    assert whole.texts["text_output"] == text_of(streamed)
    assert whole.texts["finish_reason"] == "length"
    assert json.loads(whole.texts["statistics"])["emitted"] == 40


def test_messages_are_a_chat(triton: FakeTriton, session: Session) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    [responses] = triton.ask("demo", Request(None, {"messages": messages, "max_new_tokens": 8}))
    assert text_of(responses) == session.generate(messages, max_new_tokens=8).text


@pytest.mark.parametrize("prompt", [{"text": "Hello"}, {"messages": [{"role": "user", "content": "Hi"}]}])
@pytest.mark.parametrize(
    "grammar", [{"choice": ["yes", "no"]}, {"regex": "yes|no"}, {"json_schema": {"enum": ["yes", "no"]}}]
)
def test_grammars(triton: FakeTriton, prompt: dict[str, Any], grammar: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    text = prompt.get("text")
    options = {"grammar": grammar, **({} if text else prompt)}
    [responses] = triton.ask("demo", Request(text, options))
    assert text_of(responses).strip('"') in ("yes", "no")


@pytest.mark.parametrize(
    "request_",
    [
        Request("Hello", {"max_tokens": 3}),
        Request("Hello", {"temperature": -1}),
        Request("Hello", {"max_new_tokens": 1 << 40, "stop": [""]}),
        Request("Hello", "[1, 2]"),
        Request("Hello", "{"),
        Request("Hello", "[" * 100_000),
        Request("Hello", b'{"stop": "\xff"}'),
        Request(b"\xff", None),
        Request("", None),
        Request(None, {}),
        Request("Hello", {"messages": []}),
        Request(None, {"messages": "Hello"}),
        Request(None, {"messages": [1, 2]}),
        Request("Hello", {"logit_bias": {"a": 1}}),
        Request("Hello", {"grammar": {"lark": "start: /a/"}}),
        Request("Hello", {"grammar": {"regex": "("}}),
        Request("Hello", {"grammar": {"regex": "a", "choice": ["b"]}}),
        Request("x" * 700, {}),
    ],
)
def test_what_is_wrong_is_an_argument_of_one_line(triton: FakeTriton, request_: Request) -> None:
    [[answer]] = triton.ask("demo", request_)
    message, code = error_of(answer)
    assert code == INVALID_ARG
    says(message)
    [[good]] = triton.ask("demo_whole", Request("Hello", {"max_new_tokens": 3}))
    assert json.loads(good.texts["statistics"])["emitted"] == 3


@pytest.mark.parametrize("error", [EngineError("the device is gone"), ZeroDivisionError("by\nzero")])
def test_a_failure_in_mid_stream_ends_the_stream(triton: FakeTriton, session: Session, error: Exception) -> None:
    def fail(place: int) -> None:
        decoder = session.engine.target
        if place == 2:
            decoder.step = lambda *_: (_ for _ in ()).throw(error)  # type: ignore[method-assign]

    [responses] = triton.ask("demo", Request("Hello", {"max_new_tokens": 40}, Sender(fail)))
    assert len(responses) == 3
    message, code = error_of(responses[-1])
    assert code == INTERNAL
    says(message)


def test_a_client_that_leaves_ends_its_request(triton: FakeTriton) -> None:
    def leave(place: int) -> None:
        if place == 2:
            sender.left.set()
            assert sender.told.wait(PATIENCE)

    sender = Sender(leave)
    [responses] = triton.ask("demo", Request("Hello", {"max_new_tokens": 590}, sender))
    assert responses[-1].texts["finish_reason"] == "cancelled"
    [again] = triton.ask("demo", Request("Hello", {"max_new_tokens": 5}))
    assert again[-1].texts["finish_reason"] == "length"


def test_a_client_that_leaves_while_its_prompt_is_read_ends_its_request(tmp_path: Path) -> None:
    sender = Sender()
    sender.left.set()

    class Prefill(FakeDecoder):
        """The prompt's second chunk waits until the request was cancelled."""

        def feed(self, tokens: Sequence[int], position: int) -> None:
            stream = session._stream() if session._stream is not None else None
            assert stream is not None
            wait_for(lambda: not position or stream._cancellation.requested)
            super().feed(tokens, position)

    session = fake_session(tmp_path / "b", Prefill(ROOM), None)
    fake = FakeTriton()
    fake.models["demo"] = Streams(fake.module, session, ARGS)
    [responses] = fake.ask("demo", Request("x" * 100, {"max_new_tokens": 5}, sender))
    assert [response.texts["finish_reason"] for response in responses] == ["cancelled"]
    assert 0 < session.cache_usage * ROOM.capacity < 99


def test_counters_are_those_of_the_statistics(triton: FakeTriton) -> None:
    [responses] = triton.ask("demo", Request("Hello", {"max_new_tokens": 40}))
    statistics = json.loads(responses[-1].texts["statistics"])
    triton.ask("demo", Request("Hello", "{"))  # counts nothing
    assert triton.counters == {
        "specexport:prompt_tokens_total": 5,
        "specexport:generation_tokens_total": 40,
        "specexport:prefix_cache_hits_total": 0,
        "specexport:iterations_total": statistics["rounds"],
        "specexport:spec_decode_num_draft_tokens_total": statistics["drafted"],
        "specexport:spec_decode_num_accepted_tokens_total": statistics["accepted"],
    }


@pytest.mark.parametrize(("counts", "threads"), [([1], 0), ([2], 4), ([2, 1], 2), ([16], 1)])
def test_instances_share_the_cores(counts: list[int], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.os, "sched_getaffinity", lambda _: set(range(8)))
    groups = [{"count": count} for count in counts]
    assert share_of_cores({"model_config": json.dumps({"instance_group": groups})}) == threads
