"""Drafts that read hidden states, in the loop: after whatever a request does, their rows are those of a fresh pass."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.runtime.drafting.drafters import make_draft
from specexport.runtime.loop.speculate import HostRound, decode
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import make_rule
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.prompt_cache import PromptCache
from specexport.runtime.state.statistics import Statistics
from support.doubles import CONTRACT, StatefulDecoder, greedy_tokens
from support.doubles import VOCAB as BYTE_VOCAB
from support.hidden_doubles import WIDTH, ReadingDecoder, check_rows, hidden_after, hidden_pair

VOCAB = 9


def made(seed: int = 0, chunk: int = CONTRACT.prompt_chunk) -> Context:
    target, draft = hidden_pair(seed, VOCAB, chunk)
    return Context(CachedDecoder(target, chunk), {"head": draft}, "head", taps=target.taps)


def run(context: Context, prompt: list[int], k: int, limit: int, drafter: str = "head", **options: object) -> list[int]:
    """Greedy, unless told otherwise; checks the rows after every round."""
    reads = drafter.endswith("head")
    context.readers = [context.drafts["head"]] if reads else []  # type: ignore[list-item]
    context.start(prompt)
    statistics = Statistics()
    rule = make_rule(SamplingParameters(**options), VOCAB, context.tokens, ())  # type: ignore[arg-type]
    draft = make_draft([drafter], context, rule, statistics)
    emitted: list[int] = []
    for outcome in decode(context, HostRound(context, draft, rule, statistics), FixedSchedule(k), limit, statistics):
        emitted += outcome.tokens
        check_rows(context)
    return emitted


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 17, 30])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_every_row_is_that_of_a_fresh_pass_whatever_the_chunks(k: int, length: int, chunk: int) -> None:
    context = made(length, chunk)
    prompt = prompt_of(length)
    emitted = run(context, prompt, k, 12)
    assert tuple(emitted[:12]) == greedy_tokens(context.target.decoder, prompt, 12)  # type: ignore[arg-type]


def test_a_draft_pass_takes_all_accepted_tokens_at_once() -> None:
    context = made(3)
    run(context, prompt_of(9), 3, 16)
    draft = context.drafts["head"].decoder
    assert isinstance(draft, ReadingDecoder)
    assert {count for count, _ in draft.steps if count > 1}, "no pass wrote several true rows"


def test_plain_and_looked_up_rounds_leave_rows_that_the_next_draft_writes() -> None:
    context = made(5)
    prompt = [1, 2, 3, 4] * 4
    emitted = run(context, prompt, 4, 20, "ngram+head")
    assert tuple(emitted[:20]) == greedy_tokens(context.target.decoder, prompt, 20)  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [0, 1, 5, 8, 11, 12])
def test_a_common_prefix_keeps_one_row_less_than_it_has_tokens(shared: int) -> None:
    context = made(1)
    first = prompt_of(12)
    run(context, first, 3, 6)
    second = [*first[:shared], *([(first[shared] + 1) % VOCAB] if shared < 12 else []), *prompt_of(7, 2)]
    emitted = run(context, second, 3, 9)
    assert tuple(emitted[:9]) == greedy_tokens(context.target.decoder, second, 9)  # type: ignore[arg-type]


def test_a_longer_prompt_of_the_same_sequence_feeds_nothing_again() -> None:
    context = made(2)
    prompt = prompt_of(10)
    run(context, prompt, 3, 8)
    rows, steps = context.target.rows, context.target.decoder.steps  # type: ignore[attr-defined]
    steps.clear()
    run(context, [*context.tokens, 1, 2, 3], 3, 1)
    assert min(position for _, position in steps) == rows


def test_the_same_prompt_again_and_a_shorter_one() -> None:
    context = made(4)
    prompt = prompt_of(14)
    answer = run(context, prompt, 3, 8)
    assert run(context, prompt, 3, 8)[:8] == answer[:8]
    assert tuple(run(context, prompt[:6], 3, 8)[:8]) == greedy_tokens(context.target.decoder, prompt[:6], 8)  # type: ignore[arg-type]
    assert run(context, prompt[:1], 3, 4)


def test_the_same_prompt_again_drafts_from_its_first_round_on() -> None:
    context = made(4)
    prompt = prompt_of(14)
    run(context, prompt, 3, 2)
    steps = context.drafts["head"].decoder.steps  # type: ignore[attr-defined]
    steps.clear()
    run(context, prompt, 3, 2)
    assert steps


def test_after_a_request_that_did_not_draft_the_target_gives_the_hidden_states_again() -> None:
    context = made(6)
    prompt = prompt_of(12)
    answer = run(context, prompt, 3, 6, "ngram")
    longer = [*prompt, *answer]
    emitted = run(context, longer, 3, 6)
    assert tuple(emitted[:6]) == greedy_tokens(context.target.decoder, longer, 6)  # type: ignore[arg-type]
    assert context.drafts["head"].rows > 0


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_abandoned_round_leaves_a_valid_context(after: int) -> None:
    context = made(8)
    context.readers = [context.drafts["head"]]  # type: ignore[list-item]
    prompt = prompt_of(11)
    context.start(prompt)
    statistics = Statistics()
    rule = make_rule(SamplingParameters(), VOCAB, context.tokens, ())
    rounds = decode(
        context,
        HostRound(context, make_draft(["head"], context, rule, statistics), rule, statistics),
        FixedSchedule(3),
        20,
        statistics,
    )
    for _ in range(after):
        next(rounds)
    context.truncate(len(context.tokens) - 1)  # as a stop string does
    rounds.close()
    check_rows(context)
    again = [*context.tokens, 3, 5]
    assert tuple(run(context, again, 3, 6)[:6]) == greedy_tokens(context.target.decoder, again, 6)  # type: ignore[arg-type]


def test_a_step_that_fails_leaves_rows_that_count() -> None:
    context = made(9)
    target = context.target.decoder
    step, passes = target.step, 0

    def failing(tokens: list[int], position: int) -> object:
        nonlocal passes
        passes += 1
        if passes == 4:
            raise RuntimeError("the pass failed")
        return step(tokens, position)

    target.step = failing  # type: ignore[method-assign, assignment]
    prompt = prompt_of(10)
    with pytest.raises(RuntimeError):
        run(context, prompt, 3, 20)
    check_rows(context)
    assert tuple(run(context, prompt, 3, 8)[:8]) == greedy_tokens(target, prompt, 8)  # type: ignore[arg-type]


def test_rows_come_back_from_the_prompt_cache() -> None:
    context = made(7)
    context.prompt_cache = PromptCache(1 << 20, (8, 8))
    one, other = prompt_of(13), prompt_of(15, 3)
    answer = run(context, one, 3, 6)
    run(context, other, 3, 6)
    longer = [*one, *answer[:3], 4]
    emitted = run(context, longer, 3, 8)
    assert context.restored > 0
    assert tuple(emitted[:8]) == greedy_tokens(context.target.decoder, longer, 8)  # type: ignore[arg-type]


def test_a_draft_reads_its_own_columns() -> None:
    _, draft = hidden_pair()
    draft.columns = np.array([2, 0])
    hidden = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    draft.take([1, 2, 3], 0, hidden)
    np.testing.assert_array_equal(draft.missing([1, 2, 3], 2), hidden[:, [2, 0]])  # type: ignore[arg-type]


def test_hidden_states_after_a_gap_are_dropped() -> None:
    _, draft = hidden_pair()
    draft.take([1, 2, 3, 4], 2, np.ones((1, WIDTH), np.float32))
    assert draft.reach == 0
    assert draft.first([1, 2, 3, 4], 4) is None


def test_more_hidden_states_than_may_wait() -> None:
    """A pass over candidates may be wider than a prompt chunk."""
    _, draft = hidden_pair()
    most = len(draft._waiting)
    draft.take([1] * (2 * most + 2), 0, np.ones((2 * most + 1, WIDTH), np.float32))
    assert (draft.rows, draft.reach) == (2 * most, 2 * most + 1)


def test_rows_from_elsewhere_are_followed_by_none_that_wait() -> None:
    _, draft = hidden_pair()
    draft.take([1, 2, 3, 4], 0, np.ones((2, WIDTH), np.float32))
    draft.resume(3)
    assert draft.reach == 3


def test_hidden_states_that_are_there_are_not_taken_again() -> None:
    """As where a target with states begins farther back than its draft."""
    _, draft = hidden_pair()
    states = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
    draft.take([1, 2, 3, 4, 5], 0, states[:3])
    draft.take([1, 2, 3, 4, 5], 1, states[1:])
    assert draft.reach == 4
    np.testing.assert_array_equal(draft._waiting[:4], states)


class HybridTarget(StatefulDecoder):
    """With states and hidden states."""

    def taps(self) -> np.ndarray:
        count, position = self.steps[-1]
        return np.stack([hidden_after(self.rows[: row + 1]) for row in range(position, position + count)])


def test_a_target_with_states_goes_on_where_the_draft_has_rows() -> None:
    """A long system prompt, and short words behind it: the third goes on where prompts part."""
    target, draft = HybridTarget(), hidden_pair(vocab_size=BYTE_VOCAB)[1]
    cache = PromptCache(1 << 20, (8, 8), (100, 0))
    context = Context(CachedDecoder(target, 8), {"head": draft}, "head", taps=target.taps, prompt_cache=cache)
    context.readers = [draft]
    system = list(range(24))
    kept = []
    for which in range(4):
        prompt = [*system, *range(100 + 20 * which, 112 + 20 * which)]
        kept.append(context.start(prompt))
        context.target.prefill(context.tokens, len(prompt) - 1)
        draft.catch_up(context.tokens, len(prompt) - 2)
        check_rows(context)
    assert kept == [0, 0, 23, 23]


def test_a_target_with_states_goes_on_where_lookups_left_the_draft_behind() -> None:
    """Their rows wait, more of them than the states can go back."""
    target, draft = HybridTarget(), hidden_pair(vocab_size=BYTE_VOCAB)[1]
    cache = PromptCache(1 << 20, (8, 8), (100, 0))
    context = Context(CachedDecoder(target, 8), {"head": draft}, "head", taps=target.taps, prompt_cache=cache)
    context.readers = [draft]
    context.start([1, 2, 3, 4] * 4)
    context.target.prefill(context.tokens, 15)
    draft.catch_up(context.tokens, 14)
    for position in range(15, 15 + CONTRACT.widest_step + 2):
        context.target.step(context.tokens[position:], position)
        context.tokens.append(position)
        context.take(position, 1)
    assert draft.rows < context.target.rows - CONTRACT.widest_step
    sequence = list(context.tokens)
    context.readers = []
    context.start(list(range(100, 130)))
    context.readers = [draft]
    assert context.start([*sequence, 7, 8]) == len(sequence) - 2
    check_rows(context)


def test_a_round_that_was_verified_is_not_lost_to_a_cancellation() -> None:
    """While its hidden states are taken, which may take a pass of the draft."""
    context = made(5)
    draft, prompt = context.drafts["head"], [1, 2, 3, 4] * 4
    draft.check_cancelled = pytest.fail
    assert len(run(context, prompt, 4, 20, "ngram+head")) >= 20
    assert draft.rows > len(prompt)


def test_a_block_ends_after_its_slots() -> None:
    context = made(3)
    context.drafts["head"].slots = 2
    statistics = Statistics()
    context.readers = [context.drafts["head"]]  # type: ignore[list-item]
    context.start(prompt_of(9))
    rule = make_rule(SamplingParameters(), VOCAB, context.tokens, ())
    draft = make_draft(["head"], context, rule, statistics)
    rounds = list(decode(context, HostRound(context, draft, rule, statistics), FixedSchedule(4), 12, statistics))
    assert {outcome.num_drafted for outcome in rounds} <= {0, 1, 2}
    assert 0 < statistics.draft_passes == sum(outcome.num_drafted > 0 for outcome in rounds) < statistics.drafted
