"""Rounds with leaves, on decoders whose logits betray a row that is stale, missing, or seen by the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import make_draft
from specexport.runtime.drafting.leaves import Choices, LeafChoices, LeafLimit
from specexport.runtime.drafting.rounds import RoundOutcome
from specexport.runtime.loop.speculate import decode
from specexport.runtime.loop.tree_round import TreeRound
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.sampling.leaves import Leaf
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import GreedyRule, NonFiniteLogitsError, make_rule
from specexport.runtime.state.context import CachedDecoder, Context
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
        self.k, self.limit, self.most = k, limit, most
        self.drafter = options.pop("drafter", "model")
        self.options = options | {"seed": seed}  # of decoders and noise alike, so that a run repeats itself
        self.context.start(prompt)

    def run(self) -> Iterator[list[int]]:
        rule = make_rule(SamplingParameters(**self.options), VOCAB, self.context.tokens, ())
        choices = LeafChoices(rule, LeafLimit(self.most, asked=True), self.stops, VOCAB)
        draft, target = make_draft(self.drafter, self.context, choices, self.statistics), self.context.target
        round = TreeRound(target, draft, rule, choices, self.statistics, self.target, TINY, self.likeliest)
        for outcome in decode(self.context, round, FixedSchedule(self.k), self.limit, self.statistics):
            check_invariant(self.context)
            self.outcome = outcome
            yield outcome.tokens


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("drafter", ["model", "ngram+model", "suffix+model"])
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
    choices = LeafChoices(GreedyRule(VOCAB), LeafLimit(VOCAB, asked=True), (7,), VOCAB)
    logits = np.linspace(1.0, 2.0, VOCAB + 3, dtype=np.float32)  # a draft that knows more ids than the target
    assert choices.propose(logits) == VOCAB - 1
    assert choices.take(2, 99) == [Leaf(0, token) for token in (6, 5, 4, 3, 2, 1, 0)]
    choices.begin(2, None)
    assert choices.take(2, 99) == []  # of that round only


class Budget:
    """What a row costs depends on how many there are already."""

    steps = (0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1)
    pays = True

    def could_pay(self) -> bool:
        return self.pays

    def values(self, choices: Choices) -> np.ndarray:
        return choices.values

    def costs(self, rows: int, most: int) -> np.ndarray:
        return np.append(0.0, np.cumsum(self.steps[rows : rows + most]))


def test_the_likeliest_come_first_over_all_places_while_they_are_worth_their_row() -> None:
    budget = Budget()
    choices = LeafChoices(GreedyRule(VOCAB), LeafLimit(4), (), VOCAB)
    choices.begin(2, budget)
    first = np.log(np.array([0.5, 0.3, 0.16, 0.005, 0.009, 0.008, 0.008, 0.007, 0.003], np.float32))
    second = first[[1, 0, 2, *range(3, VOCAB)]]
    choices.propose(first)
    choices.propose(second)
    # Of shares below a fiftieth nothing is known. 0.3 and 0.16 at once, half of each behind the first token: 0.15 is
    # worth a row, 0.08 is not.
    leaves = choices.take(3, 99)
    assert leaves == [Leaf(0, 1), Leaf(0, 2), Leaf(1, 0)]
    # The target agrees with the first token only, and goes on with the third choice behind it, which had no row.
    judged = choices.judged(1, 2)
    assert judged is not None
    told, hit = judged.choices, judged.hit
    assert hit is not None
    assert told.tokens.tolist() == [1, 2, 0, 2]
    assert told.ranks.tolist() == [0, 1, 0, 1]
    assert hit == 3
    assert told.leaf(hit) == Leaf(1, 2)
    assert told.values[hit] == pytest.approx(0.08)
    assert told.shares[hit] == pytest.approx(0.32)
    choices.begin(2, budget)
    choices.propose(first)
    assert choices.take(3, 1) == [Leaf(0, 1)]  # no more room
    judged = choices.judged(1, 0)
    assert judged is not None
    assert judged.hit is None  # the draft stood
    choices.begin(2, budget)
    budget.pays = False  # as a round begins
    choices.propose(first)
    budget.pays = True
    choices.propose(second)
    assert choices.take(3, 9) == []
    assert choices.judged(2, 0) is None
    choices.begin(2, budget)
    choices.certain(4)  # looked up
    assert choices.take(3, 9) == []


def test_a_dear_row_is_taken_for_those_behind_it_that_are_cheap() -> None:
    """Kernels work on some rows at a time: the first of them costs, the others hardly do."""
    budget = Budget()
    choices = LeafChoices(GreedyRule(VOCAB), LeafLimit(4), (), VOCAB)
    choices.begin(2, budget)
    row = np.log(np.array([0.4, 0.2, 0.19, 0.18, 0.006, 0.006, 0.006, 0.006, 0.006], np.float32))
    for steps, count in (((0.3, 0.01, 0.01, 0.5), 3), ((0.3, 0.15, 0.15, 0.5), 0), ((0.1, 0.3, 0.3, 0.3), 1)):
        budget.steps = (0.0, 0.0, *steps)
        choices.begin(2, budget)
        choices.propose(row)
        assert len(choices.take(2, 99)) == count


def test_a_row_that_is_no_number_is_named_by_its_place() -> None:
    rule = GreedyRule(VOCAB)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[0, 2] = logits[1, 3] = 1.0
    logits[3] = np.nan
    with pytest.raises(NonFiniteLogitsError) as caught:
        rule.accept_tree(logits, [2, 5], [Leaf(1, 3)])
    assert caught.value.index == 2
