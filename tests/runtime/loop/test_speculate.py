"""The loop, on decoders whose logits betray a row that is stale, missing or out of place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import Drafter, make_draft
from specexport.runtime.drafting.names import all_drafters
from specexport.runtime.drafting.rounds import Proposal, RoundOutcome, RoundPlan
from specexport.runtime.loop.speculate import HostRound, decode
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import make_rule
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, check_invariant, greedy_tokens

DRAFTERS = all_drafters(("model",))
VOCAB = 9
TINY = Contract(capacity=40, max_draft_tokens=4, prompt_chunk=8, precision="fp32")


def pair(seed: int, noise: float = 0.6, scale: float = 1.0, vocab: int = VOCAB) -> tuple[FakeDecoder, FakeDecoder]:
    return FakeDecoder(TINY, vocab, seed), FakeDecoder(TINY, vocab, seed, noise=noise, scale=scale)


def start(
    context: Context, k: int, limit: int, drafter: str = "model", **parameters: Any
) -> tuple[Iterator[RoundOutcome], Statistics]:
    statistics = Statistics()
    rule = make_rule(SamplingParameters(**parameters), context.target.decoder.vocab_size, context.tokens, ())
    draft = make_draft([drafter], context, rule, statistics)
    return decode(context, HostRound(context, draft, rule, statistics), FixedSchedule(k), limit, statistics), statistics


def run(
    target: FakeDecoder,
    draft: FakeDecoder,
    prompt: list[int],
    k: int,
    limit: int,
    drafter: str = "model",
    chunk: int = TINY.prompt_chunk,
    **options: Any,
) -> tuple[list[int], Statistics, Context]:
    context = Context(CachedDecoder(target, chunk), {"model": CachedDecoder(draft, chunk)}, "model")
    context.start(prompt)
    emitted = []
    rounds, statistics = start(context, k, limit, drafter, **options)
    for outcome in rounds:
        emitted += outcome.tokens
        check_invariant(context)
    assert context.tokens == prompt + emitted
    return emitted, statistics, context


def prompt_of(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, vocab, length).tolist()


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_target_as_its_own_draft_accepts_everything(k: int, length: int) -> None:
    target, draft = pair(3, noise=0.0)
    limit = 5 * (k + 1)
    emitted, statistics, _ = run(target, draft, prompt_of(length), k, limit)
    assert len(emitted) == limit
    assert statistics.rounds == 5
    assert statistics.acceptance_rate == 1.0
    assert statistics.mean_acceptance_length == k + 1


@pytest.mark.parametrize("k", [1, 4])
def test_a_draft_that_is_always_wrong_costs_rounds_and_nothing_else(k: int) -> None:
    target, draft = pair(4, noise=0.0, scale=-1.0)
    prompt = prompt_of(5)
    emitted, statistics, _ = run(target, draft, prompt, k, 20)
    assert tuple(emitted) == greedy_tokens(target, prompt, 20)
    assert (statistics.rounds, statistics.accepted) == (20, 0)


@pytest.mark.parametrize("limit", range(1, 12))
def test_never_more_than_the_limit(limit: int) -> None:
    target, draft = pair(5, noise=0.0)
    emitted, statistics, _ = run(target, draft, prompt_of(4), 4, limit)
    assert len(emitted) == limit
    assert statistics.rounds + statistics.accepted == limit


def test_no_limit_left_runs_no_round() -> None:
    target, draft = pair(5)
    assert run(target, draft, prompt_of(4), 4, 0)[0] == []


def test_the_first_draft_step_feeds_two_tokens_and_the_others_one() -> None:
    target, draft = pair(6, noise=0.0)
    run(target, draft, prompt_of(6), 4, 5)
    assert draft.steps == [(4, 0), (2, 4), (1, 6), (1, 7), (1, 8)]
    assert target.steps == [(5, 0), (5, 5)]


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_an_abandoned_loop_leaves_a_context_that_goes_on_right(rounds: int) -> None:
    target, draft = pair(7)
    prompt = prompt_of(6)
    context = Context(CachedDecoder(target, 8), {"model": CachedDecoder(draft, 8)}, "model")
    context.start(prompt)
    loop, _ = start(context, 3, 30)
    list(islice(loop, rounds))
    loop.close()
    check_invariant(context)
    longer = [*context.tokens, 1, 2]
    context.start(longer)
    emitted = [token for outcome in start(context, 3, 8)[0] for token in outcome.tokens]
    assert tuple(emitted) == greedy_tokens(target, longer, 8)


@pytest.mark.parametrize("failing", range(12))
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_step_that_fails_leaves_a_context_that_goes_on_right(
    failing: int, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = pair(8)
    prompt = prompt_of(18)
    decoder = target if role == "target" else draft
    write, count = decoder.write, iter(range(100))

    def fail_once(tokens: list[int], position: int) -> None:
        if next(count) == failing:
            write([token ^ 1 for token in tokens], position)  # half done: wrong rows are left
            raise RuntimeError("engine")
        write(tokens, position)

    monkeypatch.setattr(decoder, "write", fail_once)
    context = Context(CachedDecoder(target, 8), {"model": CachedDecoder(draft, 8)}, "model")
    context.start(prompt)
    with pytest.raises(RuntimeError, match="engine"):
        list(start(context, 2, 22)[0])
    again = context.tokens[:35]
    context.start(again)
    emitted = [token for outcome in start(context, 2, 5)[0] for token in outcome.tokens]
    assert tuple(emitted) == greedy_tokens(target, again, 5)


# Of three ids, what was said before is often said again, by chance alone; a wrong cache row still gives other tokens.
FEW = 3


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_greedy_output_is_the_targets_own_whatever_drafts(drafter: str, k: int) -> None:
    looked_up = drafted = accepted = 0
    for length in (1, 2, 3, 8, 9, 17, 26):
        for seed in range(3):
            target, draft = pair(seed, vocab=FEW)
            prompt = prompt_of(length, seed, FEW)
            emitted, statistics, _ = run(target, draft, prompt, k, TINY.capacity - length, drafter)
            assert tuple(emitted) == greedy_tokens(target, prompt, TINY.capacity - length)
            looked_up += statistics.looked_up
            drafted += statistics.drafted
            accepted += statistics.accepted
    assert (accepted > 0) == (drafted > 0) == (k > 0)
    assert (looked_up > 0) == (drafter != "model" and k > 0)
    assert (drafted > looked_up) == ("model" in drafter and k > 0)


def penalised_greedy(target: FakeDecoder, prompt: list[int], count: int, penalty: float) -> list[int]:
    """Greedy decoding with a frequency penalty, token by token and without a cache."""
    tokens = list(prompt)
    for _ in range(count):
        used = np.bincount(tokens[len(prompt) :], minlength=target.vocab_size)
        tokens.append(int((target.logits_after(tokens) - penalty * used).argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", [1, 9])
def test_a_penalised_draft_gives_what_plain_decoding_gives(drafter: str, length: int) -> None:
    accepted = 0
    for seed in range(4):
        target, draft = pair(seed, vocab=FEW)
        prompt = prompt_of(length, seed, FEW)
        emitted, statistics, _ = run(target, draft, prompt, 4, 30, drafter, frequency_penalty=0.5)
        assert (
            emitted
            == penalised_greedy(target, prompt, 30, 0.5)
            == run(target, draft, prompt, 0, 30, frequency_penalty=0.5)[0]
        )
        accepted += statistics.accepted
    assert accepted > 0


class Stutters:
    """Drafts the right tokens, but 0, 1, 2, ... of them and never as many as it is asked for."""

    def __init__(self, target: FakeDecoder, rule: Any) -> None:
        self._target, self._rule, self._counts = target, rule, cycle(range(4))
        self.asked: list[int] = []

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        pass

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        count = plan.num_draft_tokens
        self.asked.append(count)
        found = list(greedy_tokens(self._target, tokens, min(next(self._counts), max(0, count - 1))))
        for token in found:
            self._rule.record_deterministic(token)
        return Proposal(found, ["lookup"] * len(found))


def test_rounds_in_which_fewer_are_drafted_than_asked_for() -> None:
    target, statistics = FakeDecoder(TINY, VOCAB, 3), Statistics()
    context = Context(CachedDecoder(target, 8))
    context.start(prompt_of(6))
    rule = make_rule(SamplingParameters(), VOCAB, context.tokens, ())
    draft = Stutters(target, rule)
    rounds = []
    for outcome in decode(context, HostRound(context, draft, rule, statistics), FixedSchedule(4), 20, statistics):
        rounds.append(len(outcome.tokens))
        check_invariant(context)
    assert rounds == [1, 2, 3, 4, 1, 2, 3, 3, 1]  # the last ones by the limit: 3 of 4, then 1
    assert tuple(context.tokens[6:]) == greedy_tokens(target, prompt_of(6), 20)
    assert draft.asked == [4, 4, 4, 4, 4, 4, 4, 3, 0]
    assert [width for width, _ in target.steps[1:]] == rounds
    assert statistics.drafted_by_position == statistics.accepted_by_position == [6, 4, 1]
    assert statistics.rounds == 9


def test_no_draft_is_plain_decoding() -> None:
    target, draft = pair(6)
    context = Context(CachedDecoder(target, 8), {"model": CachedDecoder(draft, 8)}, "model")
    context.start(prompt_of(6))
    rule = make_rule(SamplingParameters(), VOCAB, context.tokens, ())
    round = HostRound(context, Drafter(rule), rule, Statistics())
    outcomes = decode(context, round, FixedSchedule(4), 9, Statistics())
    emitted = [token for outcome in outcomes for token in outcome.tokens]
    assert tuple(emitted) == greedy_tokens(target, prompt_of(6), 9)
    assert draft.steps == []
    assert target.steps == [(5, 0), *((1, position) for position in range(5, 14))]


def test_a_lookup_leaves_the_model_alone_and_a_mix_asks_it_where_nothing_was_found() -> None:
    prompt = [0, 1, 2, 3, 4, 0, 1, 2, 3]
    for drafter, looked_up in (("ngram", 4), ("ngram+model", 4), ("model", 0)):
        target, draft = pair(2)
        _, statistics, _ = run(target, draft, prompt, 4, 5, drafter)
        assert statistics.looked_up >= looked_up
        assert (statistics.looked_up > 0) == (looked_up > 0)
        if drafter == "ngram":
            assert draft.steps == []
        if "+" in drafter:
            assert draft.steps[0] == (7, 0)
