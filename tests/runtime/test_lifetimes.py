"""How long a stream holds its session, a session its engine, and what is said afterwards."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from specexport.errors import SessionBusyError, SessionClosedError
from specexport.runtime.session import Session
from support.doubles import CONTRACT, FakeDecoder, check_invariant, fake_session, greedy_tokens
from support.refusals import check

PROMPT = [7, 45, 200, 31, 9, 12, 250, 3, 77, 120, 45, 200, 31, 18, 5, 99, 101, 7, 45]  # three chunks


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))


def expected(session: Session, prompt: list[int], count: int) -> tuple[int, ...]:
    return greedy_tokens(session.engine.target, prompt, count)  # type: ignore[arg-type]


def closed_calls(session: Session) -> list[Callable[[], object]]:
    return [
        lambda: session.stream(PROMPT),
        lambda: session.generate(PROMPT),
        lambda: session.reset(),
        lambda: session.encode(PROMPT),
        lambda: session.__enter__(),
    ]


def test_a_closed_session_says_so(session: Session) -> None:
    session.generate(PROMPT, max_new_tokens=3)
    session.close()
    session.close()
    session.cancel()
    steps = len(session.engine.target.steps)  # type: ignore[attr-defined]
    for call in closed_calls(session):
        with pytest.raises(SessionClosedError):
            call()
    assert len(session.engine.target.steps) == steps  # type: ignore[attr-defined]


# A stream holds the session from the call on.


def test_a_second_request_is_refused_at_the_call(session: Session) -> None:
    stream = session.stream(PROMPT, max_new_tokens=9)
    for refused in (lambda: session.stream([1]), lambda: session.generate([1]), session.reset):
        with pytest.raises(SessionBusyError):
            refused()  # type: ignore[operator]
    assert tuple(token for chunk in stream for token in chunk.tokens) == expected(session, PROMPT, 9)


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_stream_that_is_closed_or_dropped_holds_nothing(session: Session, started: int) -> None:
    for way in ("close", "drop"):
        stream = session.stream(PROMPT)
        for _ in range(started):
            next(stream)
        if way == "close":
            stream.close()
            assert list(stream) == []
        else:
            del stream
            gc.collect()
        check_invariant(session._context)
        assert session.generate([5, 6], max_new_tokens=3).tokens == expected(session, [5, 6], 3)


def test_the_last_chunk_frees_the_session(session: Session) -> None:
    """A loop that breaks at the finish reason does not ask for more."""
    stream = session.stream(PROMPT, max_new_tokens=3)
    while next(stream).finish_reason is None:
        pass
    assert session.generate([5, 6], max_new_tokens=3).tokens == expected(session, [5, 6], 3)
    assert list(stream) == []


# The end of a session closes its stream.


# Cancelling.


class Calls:
    """Runs `action` in front of the decoder's pass number `at`, in the middle of a prompt or a round."""

    def __init__(self, decoder: Any, at: int, action: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
        self.seen, self._at, self._action, self._step = 0, at, action, decoder.step
        patch.setattr(decoder, "step", self)

    def __call__(self, tokens: Any, position: int) -> Any:
        self.seen += 1
        if self.seen == self._at:
            self._action()
        return self._step(tokens, position)


def decoder_of(session: Session, role: str) -> Any:
    return session.engine.target if role == "target" else session.engine.draft.decoder  # type: ignore[union-attr]


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_prefill_is_cancelled_between_chunks(
    session: Session, role: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(session, role)
    calls = Calls(decoder, chunk, session.cancel, monkeypatch)
    found = session.generate(PROMPT)
    assert found.finish_reason == "cancelled"
    assert len(found.tokens) == found.statistics.emitted
    fed = min(chunk * CONTRACT.prompt_chunk, len(PROMPT) - (1 if role == "target" else 2))
    if chunk < 3:
        assert (calls.seen, found.tokens, found.statistics.rounds) == (chunk, (), 0)
        assert found.statistics.prefill_seconds > 0
    check_invariant(session._context)
    # What was fed is kept, and is right.
    again = session.generate(PROMPT, max_new_tokens=9)
    assert again.tokens == expected(session, PROMPT, 9)
    if role == "target":
        assert again.statistics.reused_tokens == fed


def test_a_round_is_the_last_one(session: Session) -> None:
    stream = session.stream(PROMPT)
    first = next(stream)
    stream.cancel()
    last = next(stream)
    assert (last.tokens, last.finish_reason) == ((), "cancelled")
    assert last.statistics.emitted == len(first.tokens)
    assert list(stream) == []
    assert session.generate(PROMPT, max_new_tokens=9).tokens == expected(session, PROMPT, 9)


def test_text_that_was_held_back_comes_with_the_last_chunk(session: Session) -> None:
    whole = session.generate(PROMPT, max_new_tokens=12, num_draft_tokens=0)
    session.reset()
    stream = session.stream(PROMPT, max_new_tokens=12, num_draft_tokens=0, stop=whole.text[0] + "no such text")
    held = [next(stream) for _ in range(6)]
    stream.cancel()
    text = "".join(chunk.text for chunk in [*held, *stream])
    assert whole.text.startswith(text.rstrip("\ufffd"))
    assert text


def test_a_request_is_cancelled_before_it_begins(session: Session) -> None:
    session.generate(PROMPT, max_new_tokens=2)
    steps = len(session.engine.target.steps)  # type: ignore[attr-defined]
    stream = session.stream([1, 2, 3])
    session.cancel()
    assert [chunk.finish_reason for chunk in stream] == ["cancelled"]
    assert len(session.engine.target.steps) == steps  # type: ignore[attr-defined]
    assert session.generate(PROMPT, max_new_tokens=2).statistics.reused_tokens == len(PROMPT) - 1


def test_a_request_is_cancelled_while_its_draft_is_opened(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.drafts, "use", lambda drafter: session.cancel())
    assert session.generate(PROMPT, max_new_tokens=9).finish_reason == "cancelled"


def test_cancelling_is_of_the_open_request_alone(session: Session) -> None:
    session.cancel()
    old = session.stream(PROMPT)
    next(old)
    old.close()
    stream = session.stream(PROMPT, max_new_tokens=9)
    old.cancel()
    assert tuple(token for chunk in stream for token in chunk.tokens) == expected(session, PROMPT, 9)
    session.cancel()
    assert session.generate(PROMPT, max_new_tokens=9).finish_reason == "length"


@pytest.mark.parametrize("call", [lambda session: session.generate([1, 2], max_new_tokens=3), Session.reset])
def test_an_interrupt_before_any_line(session: Session, call: Callable[[Session], object]) -> None:
    """Of the session and its stream. Entering and leaving a `with` is one step for signals, and is left whole."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        dropped = "__del__" in (frame.f_code.co_name, frame.f_back and frame.f_back.f_code.co_name)
        if dropped or not file.endswith(("runtime/session.py", "runtime/stream.py")):
            return None
        if event == "line" and (file, line) not in lines and "with " not in getline(file, line):
            lines.add((file, line))
            raise KeyboardInterrupt
        return trace

    before, count = sys.gettrace(), -1
    while len(lines) > count:
        count = len(lines)
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace)
            try:
                call(session)
            finally:
                sys.settrace(before)
        assert session.generate(PROMPT, max_new_tokens=9).tokens == expected(session, PROMPT, 9)
    assert count > 5


# Other threads.


class Paused:
    """Holds the target's pass number `at` until it is let go."""

    def __init__(self, session: Session, at: int, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        Calls(session.engine.target, at, self._wait, patch)

    def _wait(self) -> None:
        self.reached.set()
        assert self.go.wait(10)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)  # one that hangs must not keep the process
    thread.start()
    return thread, found


@pytest.mark.parametrize("at", [1, 5])
def test_closing_waits_for_another_threads_pass(session: Session, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(session, at, monkeypatch)
    passes: list[int] = []
    target = session.engine.target
    counted = Session(session.bundle, replace(session.engine, close=lambda: passes.append(len(target.steps))))  # type: ignore[attr-defined]
    running, found = in_thread(lambda: counted.generate(PROMPT))
    assert paused.reached.wait(10)
    closing, closed = in_thread(counted.close)
    closing.join(0.05)
    assert passes == []  # the engine must not go while a pass runs
    paused.go.set()
    closing.join(10)
    running.join(10)
    assert closed == [None]
    assert passes == [len(target.steps)]  # type: ignore[attr-defined]
    assert getattr(found[0], "finish_reason", None) == "cancelled" or isinstance(found[0], SessionClosedError)


def test_a_stream_cannot_be_closed_from_within(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler may try; it would take the engine from under a pass."""
    refused: list[Exception] = []

    def close() -> None:
        try:
            session.close()
        except SessionBusyError as error:
            refused.append(error)

    Calls(session.engine.target, 5, close, monkeypatch)
    assert session.generate(PROMPT).finish_reason == "cancelled"
    (error,) = refused
    check(error, "cancelled")  # not another stream, which could be closed
    assert session.generate(PROMPT, max_new_tokens=9).tokens == expected(session, PROMPT, 9)
    session.close()


def test_the_second_to_close_waits_for_the_first(session: Session) -> None:
    reached, go, closes = threading.Event(), threading.Event(), 0

    def close() -> None:
        nonlocal closes
        reached.set()
        assert go.wait(10)
        closes += 1

    slow = Session(session.bundle, replace(session.engine, close=close))
    first, _ = in_thread(slow.close)
    assert reached.wait(10)
    second, found = in_thread(lambda: (slow.close(), closes)[1])
    second.join(0.05)
    assert found == []
    go.set()
    first.join(10)
    second.join(10)
    assert found == [1]


def test_closing_that_is_interrupted_while_it_waits_leaves_the_session_open(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "cancel", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.close()
    assert session.generate(PROMPT, max_new_tokens=9).tokens == expected(session, PROMPT, 9)
