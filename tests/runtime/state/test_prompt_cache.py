from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from specexport.runtime.session import Session
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.prompt_cache import PromptCache
from support.doubles import VOCAB, FakeDecoder, check_invariant, fake_session, greedy_tokens

ROW = 8  # bytes of a row of either decoder, as these tests count
A, B, C = [1] * 12, [2] * 12, [3] * 12


def make_context(budget: int = 1000 * ROW) -> Context:
    return Context(
        CachedDecoder(FakeDecoder(), 8),
        {"model": CachedDecoder(FakeDecoder(), 8)},
        "model",
        prompt_cache=PromptCache(budget, [ROW, ROW]),
    )


def run(context: Context, tokens: list[int], salt: str | None = None, draft: int | None = None) -> int:
    """One request: all but the last token fed, to the draft `draft` of them. Returns the rows that were there."""
    kept = context.start(tokens, salt)
    for cached, end in zip(context.decoders, (len(tokens) - 1, draft or len(tokens) - 1), strict=True):
        cached.prefill(tokens, end)
    check_invariant(context)
    return kept


def test_a_sequence_that_was_overwritten_comes_back() -> None:
    context = make_context()
    assert [run(context, A), run(context, B)] == [0, 0]
    assert run(context, [*A, 7, 8]) == 11
    assert context.restored == 11
    assert context.draft is not None
    assert run(context, [*B, 7]) == 11


def test_only_rows_that_are_not_there_are_written() -> None:
    """The system prompt that two conversations share stays where it is."""
    context = make_context()
    system = [9] * 5
    run(context, [*system, *A])
    run(context, [*system, *B])
    context.target.decoder.rows[:5] = 9.0  # type: ignore[attr-defined]
    written: list[tuple[int, int]] = []
    decoder = context.target.decoder
    original = decoder.write_rows
    decoder.write_rows = lambda saved, start, end: (written.append((start, end)), original(saved, start, end))  # type: ignore[method-assign, assignment]
    assert run(context, [*system, *A, 4]) == 16
    assert context.restored == 11
    assert written == [(5, 16)]


def test_the_draft_gets_back_what_it_had() -> None:
    context = make_context()
    run(context, A, draft=6)
    run(context, B)
    context.start([*A, 5])
    assert [cached.rows for cached in context.decoders] == [11, 6]
    check_invariant(context)


def test_salts_share_nothing() -> None:
    context = make_context()
    run(context, A, "one")
    assert run(context, [*A, 3], "two") == 0
    assert run(context, [*A, 4], "one") == 11
    assert run(context, [*A, 4]) == 0


def test_a_conversation_that_goes_on_is_not_copied() -> None:
    context = make_context()
    assert context.prompt_cache is not None
    for length in range(4, 40, 3):
        run(context, A[:1] * length)
        assert len(context.prompt_cache) == 0


def test_the_budget_holds_and_the_least_recently_used_goes() -> None:
    context = make_context(budget=2 * 2 * 11 * ROW)
    assert context.prompt_cache is not None
    for tokens in (A, B, C):
        run(context, tokens)
    assert context.prompt_cache.size == 2 * 2 * 11 * ROW
    assert run(context, [*A, 5]) == 11  # and so B is the older one
    run(context, [6] * 12)
    assert run(context, [*B, 5]) == 0
    assert context.prompt_cache.size <= 2 * 2 * 11 * ROW


def test_a_longer_form_takes_the_place_of_a_shorter_one() -> None:
    context = make_context()
    assert context.prompt_cache is not None
    run(context, A)
    run(context, B)
    run(context, [*A, 4, 5])
    run(context, [*B, 4])
    assert [len(context.prompt_cache), context.prompt_cache.size] == [2, 2 * (13 + 11) * ROW]
    run(context, [*A[:6], 8])  # B's longer form is displaced; A's shorter one is held already
    run(context, C)
    assert len(context.prompt_cache) == 2


def test_an_interrupted_restore_leaves_no_rows_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context()
    run(context, A)
    run(context, B)

    def interrupted(saved: object, start: int, end: int) -> None:
        context.target.decoder.rows[start] = 77.0  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(context.target.decoder, "write_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        context.start([*A, 4])
    check_invariant(context)
    monkeypatch.undo()
    assert run(context, [*A, 4]) == 11


MakeSession = Callable[[int], Session]


@pytest.fixture
def make_session(tmp_path: Path) -> MakeSession:
    def make(budget: int) -> Session:
        target, draft = FakeDecoder(seed=1), FakeDecoder(seed=1, noise=0.4)
        return fake_session(tmp_path, target, draft, prompt_cache_bytes=budget)

    return make


@pytest.mark.parametrize("seed", range(6))
def test_conversations_in_turn_give_what_each_gives_alone(make_session: MakeSession, seed: int) -> None:
    """And prefill no more than each turn's new tokens: the last of them is fed by the first round."""
    session = make_session(1 << 20)
    random = np.random.default_rng(seed)
    talks: list[list[int]] = [[], [], []]
    for turn in range(18):
        talk = talks[turn % 3] if turn < 3 else talks[int(random.integers(3))]
        said = len(talk)
        talk += random.integers(0, VOCAB, 2).tolist()
        given = session.generate(talk, max_new_tokens=3, speculate=bool(turn % 2), stop_token_ids=())
        assert given.tokens == greedy_tokens(session.engine.target, talk, 3)  # type: ignore[arg-type]
        assert given.statistics.reused_tokens >= said - 1
        talk += given.tokens
        if len(talk) > 30:
            talk.clear()
