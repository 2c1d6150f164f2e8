"""Rounds with candidates, on decoders whose logits betray a row that is stale, missing, or seen by the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import make_draft
from specexport.runtime.drafting.rounds import RoundOutcome
from specexport.runtime.loop.speculate import decode
from specexport.runtime.loop.tree_round import TreeRound
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import GreedyRule, NonFiniteLogitsError, make_rule
from specexport.runtime.sampling.spectr import Candidate, Candidates
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, FakeTreeDecoder, check_invariant, greedy_tokens

VOCAB = 9
TINY = Contract(capacity=48, max_draft_tokens=4, prompt_chunk=8, precision="fp32", tree_rows=6)
# So cold that the target draws its likeliest token; the draft, whose logits are as small, draws others too.
COLD = 1e-6


class Rounds:
    """Rounds of one request over a pair whose draft is right now and then; the output is the target's greedy one."""

    def __init__(self, prompt: list[int], k: int, limit: int, most: int = 6, seed: int = 0, **options: Any) -> None:
        self.target = FakeTreeDecoder(TINY, VOCAB, seed)
        self.draft = FakeDecoder(TINY, VOCAB, seed, noise=0.9, scale=COLD)
        self.context = Context(CachedDecoder(self.target, 8), {"model": CachedDecoder(self.draft, 8)}, "model")
        self.statistics, self.likeliest, self.stops = Statistics(), options.pop("logprobs", None), (VOCAB - 1,)
        self.outcome = RoundOutcome((), (), 0)  # of the newest round
        self.schedule, self.limit, self.most = FixedSchedule(k), limit, most
        self.drafter = options.pop("drafter", "model")
        # One seed for decoders and noise, so that a run repeats itself.
        self.options = {"temperature": COLD, "verification": "spectr", "seed": seed} | options
        self.context.start(prompt)

    def run(self) -> Iterator[list[int]]:
        rule = make_rule(SamplingParameters(**self.options), VOCAB, self.context.tokens, ())
        assert rule.candidates is not None
        rule.candidates.allow(self.most, self.stops)
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
def test_the_output_is_the_targets_own(length: int, k: int, drafter: str) -> None:
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


def test_candidates_save_rounds() -> None:
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


def test_a_request_draws_behind_a_candidate_and_penalties_count_it() -> None:
    rounds = Rounds(prompt_of(8), 3, 40, temperature=1.0, seed=4, repetition_penalty=1.3, logprobs=1)
    for tokens in rounds.run():
        assert [entry.token for entry in rounds.outcome.logprobs] == tokens
    assert rounds.statistics.caught > 0
    # With a penalty each row's own prefix decides, that of a candidate's row with the candidate.
    for seed in range(6):
        penalised = Rounds(prompt_of(8, seed), 3, 40, seed=seed, frequency_penalty=1.5)
        plain = Rounds(prompt_of(8, seed), 0, 40, seed=seed, frequency_penalty=1.5)
        found = [[token for tokens in one.run() for token in tokens] for one in (penalised, plain)]
        assert found[0] == found[1]
        assert penalised.statistics.caught > 0


def test_stop_tokens_and_the_drafted_token_get_no_rows() -> None:
    candidates = Candidates()
    candidates.allow(7, (2,))
    candidates.begin(2)
    uniforms = iter([0.1, 0.3, 0.6, 0.9, 0.4, 0.1, 0.9])  # four at the first position, three at the second
    for token in (0, 3):
        candidates.add(Distribution(np.full(4, 0.25)), token, lambda n: np.array([next(uniforms) for _ in range(n)]))
    assert candidates.others == [[0, 1, 2, 3], [1, 0, 3]]
    assert candidates.take(99) == [Candidate(0, 1), Candidate(0, 3), Candidate(1, 1), Candidate(1, 0)]
    assert candidates.take(1) == [Candidate(0, 1)]  # no more room
    candidates.begin(2)
    candidates.add_deterministic(1)  # looked up
    assert candidates.take(99) == []


def test_a_row_that_is_no_number_is_named_by_its_place() -> None:
    rule = GreedyRule(VOCAB)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[0, 2] = logits[1, 3] = 1.0
    logits[3] = np.nan
    with pytest.raises(NonFiniteLogitsError) as caught:
        rule.accept_tree(logits, [2, 5], [Candidate(1, 3)])
    assert caught.value.index == 2
