"""Rounds with leaves, on decoders whose logits betray a row that is stale, missing, or seen by the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import make_draft
from specexport.runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from specexport.runtime.loop.speculate import decode
from specexport.runtime.loop.tree_round import TreeRound
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.sampling.leaves import Leaf, LeafChoices
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import GreedyRule, NonFiniteLogitsError, make_rule
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, FakeTreeDecoder, check_invariant, greedy_tokens

VOCAB = 9
TINY = Contract(capacity=48, max_draft_tokens=4, prompt_chunk=8, precision="fp32", tree_rows=6)


class Rounds:
    """Rounds of one request over a pair whose draft is right now and then."""

    def __init__(self, prompt: list[int], k: int, limit: int, most: int = 6, seed: int = 0, **options: Any) -> None:
        self.target = FakeTreeDecoder(TINY, VOCAB, seed)
        self.draft = FakeDecoder(TINY, VOCAB, seed, noise=0.9)
        self.context = Context(CachedDecoder(self.target, 8), {"model": CachedDecoder(self.draft, 8)}, "model")
        self.statistics, self.likeliest, self.stops = Statistics(), options.pop("logprobs", None), (VOCAB - 1,)
        self.outcome = RoundOutcome((), (), 0)  # of the newest round
        self.schedule, self.limit, self.most = FixedSchedule(k), limit, most
        self.drafter = options.pop("drafter", "model")
        self.options = options | {"seed": seed}  # of decoders and noise alike, so that a run repeats itself
        self.context.start(prompt)

    def run(self) -> Iterator[list[int]]:
        rule = make_rule(SamplingParameters(**self.options), VOCAB, self.context.tokens, ())
        rule.leaves = LeafChoices(self.most, self.stops)
        draft = make_draft([self.drafter], self.context, rule, self.statistics)
        round = TreeRound(self.context, draft, rule, self.statistics, self.target, TINY, self.likeliest)
        for outcome in decode(self.context, round, self.schedule, self.limit, self.statistics):
            check_invariant(self.context)
            self.outcome = outcome
            yield outcome.tokens


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("drafter", ["model", "ngram+model"])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 8, 17])
def test_greedy_output_is_the_targets_own(length: int, k: int, drafter: str) -> None:
    caught = again = 0
    for seed in range(8):
        prompt, limit = prompt_of(length, seed), TINY.capacity - length  # up to the last row of the cache
        rounds = Rounds(prompt, k, limit, seed=seed, drafter=drafter)
        emitted = [token for tokens in rounds.run() for token in tokens]
        assert tuple(emitted) == greedy_tokens(rounds.target, prompt, limit)
        assert len(emitted) == rounds.statistics.accepted + rounds.statistics.rounds + rounds.statistics.caught
        caught += rounds.statistics.caught
        again += rounds.statistics.fed_again
    assert caught > 8
    assert again > 0


def test_leaves_save_rounds() -> None:
    taken = {most: Rounds(prompt_of(8), 2, 40, most) for most in (0, 1, 6)}
    counts = {}
    for most, rounds in taken.items():
        assert len([token for tokens in rounds.run() for token in tokens]) == 40
        counts[most] = rounds.statistics.rounds
        assert all(len(parents) <= most for parents in rounds.target.trees)
    assert counts[6] < counts[1] <= counts[0]


def test_what_was_caught_is_fed_again_and_nothing_else() -> None:
    rounds = Rounds(prompt_of(8), 2, 40)
    for tokens in rounds.run():
        lacking = len(rounds.context.tokens) - rounds.context.target.rows
        assert lacking == 1 + (len(tokens) > rounds.outcome.num_accepted + 1)
    assert rounds.statistics.fed_again in (rounds.statistics.caught, rounds.statistics.caught - 1)  # the last round's


@pytest.mark.parametrize("stop", range(1, 9))
def test_an_abandoned_sequence_goes_on_as_if_nothing_had_been_caught(stop: int) -> None:
    rounds = Rounds(prompt_of(8, 3), 2, 30, seed=3)
    for place, _ in enumerate(rounds.run(), start=1):
        if place == stop:
            break
    tokens = list(rounds.context.tokens)
    rounds.context.start(tokens)  # the next request, which goes on from there
    rounds.limit = 10
    more = [token for tokens in rounds.run() for token in tokens]
    assert tuple(more) == greedy_tokens(rounds.target, tokens, 10)


def test_a_sampled_request_draws_behind_a_leaf_and_penalties_count_it() -> None:
    rounds = Rounds(prompt_of(8), 3, 40, temperature=1.0, seed=4, repetition_penalty=1.3, logprobs=1)
    for tokens in rounds.run():
        assert [entry.token for entry in rounds.outcome.logprobs] == tokens
    assert rounds.statistics.caught > 0
    # Greedy with a penalty: each row's own prefix decides, that of a leaf's row with the leaf.
    for seed in range(6):
        penalised = Rounds(prompt_of(8, seed), 3, 40, seed=seed, frequency_penalty=1.5)
        plain = Rounds(prompt_of(8, seed), 0, 40, seed=seed, frequency_penalty=1.5)
        found = [[token for tokens in one.run() for token in tokens] for one in (penalised, plain)]
        assert found[0] == found[1]
        assert penalised.statistics.caught > 0


def test_stop_tokens_and_the_drafted_token_are_never_leaves() -> None:
    rule, choices = GreedyRule(VOCAB), LeafChoices(VOCAB, (7,))
    rule.leaves = choices
    logits = np.linspace(1.0, 2.0, VOCAB + 3, dtype=np.float32)  # a draft that knows more ids than the target
    assert rule.propose(logits) == VOCAB - 1
    assert choices.take(99) == [Leaf(0, token) for token in (6, 5, 4, 3, 2, 1, 0)]
    choices.begin(2)
    assert choices.take(99) == []  # of that round only


def test_the_likeliest_come_first_over_all_places() -> None:
    rule, choices = GreedyRule(VOCAB), LeafChoices(4, ())
    rule.leaves = choices
    choices.begin(2)
    first = np.log(np.array([0.5, 0.3, 0.16, 0.005, 0.009, 0.008, 0.008, 0.007, 0.003], np.float32))
    rule.propose(first)
    rule.propose(first[[1, 0, 2, *range(3, VOCAB)]])
    # 0.3 and 0.16 at once, half of each after the first token; shares below a fiftieth are ignored.
    assert choices.take(99) == [Leaf(0, 1), Leaf(0, 2), Leaf(1, 0), Leaf(1, 2)]
    assert choices.take(1) == [Leaf(0, 1)]  # no more room
    rule.accept(np.zeros((1, VOCAB), np.float32), [])
    choices.begin(2)
    rule.record_deterministic(4)  # looked up
    assert choices.take(9) == []
    rule.propose(first)
    assert choices.take(1) == [Leaf(1, 1)]


def test_a_plan_may_allow_fewer_leaves() -> None:
    class Few(FixedSchedule):
        def plan(self, sequence: SequenceState) -> RoundPlan:
            return replace(super().plan(sequence), num_leaves=1)

    rounds = Rounds(prompt_of(8), 2, 40)
    rounds.schedule = Few(2)
    assert len([token for tokens in rounds.run() for token in tokens]) == 40
    assert 0 < rounds.statistics.leaves <= rounds.statistics.rounds


def test_a_row_that_is_no_number_is_named_by_its_place() -> None:
    rule = GreedyRule(VOCAB)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[0, 2] = logits[1, 3] = 1.0
    logits[3] = np.nan
    with pytest.raises(NonFiniteLogitsError) as caught:
        rule.accept_tree(logits, [2, 5], [Leaf(1, 3)])
    assert caught.value.index == 2
