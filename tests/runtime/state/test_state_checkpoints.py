"""Places that models with states go on behind: which are kept, what a prompt gets back, and what never comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from specexport.runtime.session import Session
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.prompt_cache import MAX_CHECKPOINTS, PromptCache
from support.doubles import CONTRACT, VOCAB, StatefulDecoder, check_invariant, fake_session, greedy_tokens

ROW, STATE = 8, 100  # bytes, as these tests count
WINDOW = CONTRACT.widest_step  # so many rows before its end a place can be gone on behind


def make_context(budget: int = 100 * STATE) -> Context:
    return Context(
        CachedDecoder(StatefulDecoder(), 8),
        {"model": CachedDecoder(StatefulDecoder(keeps=True), 8, held_back=2)},
        "model",
        prompt_cache=PromptCache(budget, [ROW, ROW], [STATE, STATE]),
    )


def run(context: Context, tokens: list[int], salt: str | None = None) -> list[int]:
    """One request without an answer. Returns behind how many rows either decoder went on."""
    context.start(tokens, salt)
    kept = [cached.rows for cached in context.decoders]
    for cached in context.decoders:
        cached.prefill(context.tokens, cached.last(tokens))
    check_invariant(context)
    return kept


def numbers(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def test_a_prompt_that_goes_back_goes_on_from_the_nearest_place() -> None:
    context = make_context()
    first = numbers(0, 12)
    assert run(context, first) == [0, 0]
    longer = [*first, *numbers(20, 12)]
    assert run(context, longer) == [11, 10]
    assert run(context, [*first, 99]) == [11, 10]
    assert run(context, [*longer, 99, 98]) == [23, 22]
    assert run(context, [*first[:-2], 97]) == [10, 9]
    assert run(context, [*first[: 11 - WINDOW], *numbers(30, 8)]) == [11 - WINDOW, 11 - WINDOW]
    assert run(context, [*first[: 10 - WINDOW - 1], *numbers(40, 8)]) == [0, 0]


def test_a_sequence_that_was_overwritten_comes_back_with_its_states() -> None:
    context = make_context()
    one, other = numbers(0, 12), numbers(50, 14)
    run(context, one)
    assert run(context, other) == [0, 0]
    assert run(context, [*one, 7]) == [11, 10]
    assert context.restored == 11
    assert run(context, [*other, 7, 8]) == [13, 12]


def test_rows_beyond_the_place_are_computed_again_and_rows_there_stay() -> None:
    context = make_context()
    first = numbers(0, 16)
    run(context, first)
    run(context, numbers(50, 12))
    written: list[tuple[int, int]] = []
    decoder = context.target.decoder
    original = decoder.write_rows
    decoder.write_rows = lambda saved, start, end: (written.append((start, end)), original(saved, start, end))  # type: ignore[method-assign, assignment]
    assert run(context, [*first[:13], 99])[0] == 13
    assert written == [(0, 13)]
    assert run(context, [*first[:12], 98])[0] == 12
    assert written == [(0, 13)]


def test_salts_share_nothing() -> None:
    context = make_context()
    first = numbers(0, 12)
    run(context, first, "one")
    assert run(context, [*first, 3], "two") == [0, 0]
    assert run(context, [*first, 4], "one") == [11, 10]
    assert run(context, [*first, 4]) == [0, 0]


def test_where_prompts_part_a_place_is_made_for_the_third() -> None:
    """A long system prompt, and short words behind it."""
    context = make_context()
    system = numbers(0, 24)
    for which, kept in enumerate(([0, 0], [0, 0], [24, 24], [24, 24])):
        assert run(context, [*system, *numbers(100 + 20 * which, 12)]) == kept
    assert sum(place.shared for place in context.prompt_cache.checkpoints) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("room", range(1, 12))
def test_the_budget_holds_for_rows_and_states_together(room: int) -> None:
    context = make_context(room * STATE)
    prompt_cache = context.prompt_cache
    assert prompt_cache is not None
    talks = [numbers(20 * which, 8) for which in range(3)]
    for _ in range(3):
        for talk in talks:
            run(context, talk)
            assert prompt_cache.size <= room * STATE
            talk += [99, 98]


def test_least_recently_used_places_go_first() -> None:
    context = make_context(8 * STATE)  # a sequence takes two, and 168 for its rows
    one, two, three = (numbers(20 * which, 12) for which in range(3))
    for talk in (one, two, three):
        run(context, talk)
    assert run(context, [*two, 5]) == [11, 10]
    assert run(context, [*one, 5]) == [0, 0]


def test_a_sequence_keeps_its_last_places_and_those_that_others_share() -> None:
    context = make_context()
    talk = numbers(0, 6)
    for turn in range(6):
        run(context, talk)
        talk = [*talk, *numbers(10 + 5 * turn, 5)]
    prompt_cache = context.prompt_cache
    assert prompt_cache is not None
    ends = [[len(place.tokens) for place in prompt_cache.checkpoints if place.decoder == which] for which in range(2)]
    assert ends == [[15, 20, 25, 30], [14, 19, 24, 29]]
    assert len(ends[0]) == MAX_CHECKPOINTS


def test_an_interrupted_restore_leaves_states_that_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context()
    first = numbers(0, 12)
    run(context, first)
    run(context, [*first, *numbers(60, 9)])
    decoder = context.target.decoder

    def interrupted(saved: object) -> None:
        decoder.certain[0] = 77.0  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "write_recurrent_states", interrupted)
    with pytest.raises(KeyboardInterrupt):
        context.start([*first, 4])
    assert context.target.rows == 0
    monkeypatch.undo()
    assert run(context, [*first, 4]) == [11, 10]


def test_a_pass_that_failed_leaves_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context()
    first = numbers(0, 12)
    run(context, first)
    decoder = context.target.decoder
    context.target.step(first[-1:], 11)  # farther than the place that there is

    def interrupted(tokens: list[int], position: int) -> None:
        decoder.open_rows.begin(position, len(tokens))  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        context.target.step([3], 12)
    monkeypatch.undo()
    assert context.target.rows == 12
    run(context, numbers(50, 12))
    ends = {(place.decoder, len(place.tokens), place.states.start) for place in context.prompt_cache.checkpoints}  # type: ignore[union-attr]
    assert ends == {(0, 11, 11 - WINDOW), (1, 10, 10 - WINDOW)}
    assert run(context, [*first, 3]) == [11, 10]


def test_what_a_prompt_comes_back_for_is_not_thrown_out_to_make_room() -> None:
    context = make_context(6 * STATE)  # for one sequence and its rows, and a place each
    one, two = numbers(0, 12), numbers(20, 12)
    run(context, one)
    run(context, two)
    assert run(context, [*one, 5]) == [11, 10]


MakeSession = Callable[[int], Session]


@pytest.fixture
def make_session(tmp_path: Path) -> MakeSession:
    def make(budget: int) -> Session:
        target, draft = StatefulDecoder(seed=1), StatefulDecoder(seed=1, noise=0.4, keeps=True)
        return fake_session(tmp_path, target, draft, prompt_cache_bytes=budget)

    return make


def ask(session: Session, prompt: list[int], **options: bool) -> tuple[list[int], list[int]]:
    """The answer, which must be a fresh session's, and behind how many rows either decoder began."""
    decoders: list[StatefulDecoder] = [session.engine.target, session.engine.draft.decoder]  # type: ignore[list-item]
    for decoder in decoders:
        decoder.steps.clear()
    given = session.generate(prompt, max_new_tokens=3, stop_token_ids=(), **options)  # type: ignore[arg-type]
    assert given.tokens == greedy_tokens(decoders[0], prompt, 3)
    check_invariant(session._context)
    return list(given.tokens), [min([place for _, place in x.steps], default=len(prompt)) for x in decoders]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dropped", [0, 2])
def test_chats_in_turn_prefill_no_more_than_what_is_new(make_session: MakeSession, dropped: int, seed: int) -> None:
    """dropped: tokens at the end of a prompt that the template leaves out behind the next turn, with what was thought
    behind them.
    """
    session, random = make_session(1 << 20), np.random.default_rng(seed)
    talks: list[list[int]] = [[], [], []]
    shared, prompts = [0, 0, 0], [0, 0, 0]  # tokens that the next prompt has in common; those of the last prompt
    for turn in range(18):
        which = turn if turn < 3 else int(random.integers(3))
        prompt = talks[which] + random.integers(0, VOCAB, 4).tolist()
        answer, began = ask(session, prompt)
        assert began[0] >= shared[which] - 1
        assert began[1] >= min(shared[which], prompts[which]) - 2  # it may lack some of the answer
        talks[which] = [*prompt[:-dropped], *answer[1:]] if dropped else [*prompt, *answer]
        shared[which] = len(prompt) - dropped if dropped else len(talks[which])
        prompts[which] = len(prompt)
        if len(talks[which]) > 30:
            talks[which], shared[which], prompts[which] = [], 0, 0


def test_a_draft_that_is_asked_now_and_then(make_session: MakeSession) -> None:
    session, talk = make_session(1 << 20), [5]
    for turn in range(8):
        known = len(talk)
        talk += [turn, turn + 1]
        answer, began = ask(session, talk, speculate=turn % 3 == 0)
        assert began[0] >= known - 1
        talk += answer
