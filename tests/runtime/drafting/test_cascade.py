"""A draft model for which something cheaper drafts: the same tokens in fewer passes."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import Drafter
from specexport.runtime.drafting.lookup import NgramLookup
from specexport.runtime.drafting.model_draft import ModelDraft, SmallerModel
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.loop.speculate import HostRound, decode
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import make_rule
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, check_invariant, greedy_tokens

VOCAB = 9
TINY = Contract(capacity=64, max_draft_tokens=5, prompt_chunk=8, precision="fp32")


class Rounds:
    """One request over a target, a draft and a smaller draft. guesser: None for the draft alone."""

    def __init__(self, prompt: list[int], guesser: str | None, k: int, seed: int, **options: float) -> None:
        self.target = FakeDecoder(TINY, VOCAB, seed)
        self.context = Context(CachedDecoder(self.target, 8))
        model = CachedDecoder(FakeDecoder(TINY, VOCAB, seed, noise=0.5), 8, widest=TINY.widest_step)
        self.context.drafts = {"model": model, "small": CachedDecoder(FakeDecoder(TINY, VOCAB, seed, noise=0.8), 8)}
        self.statistics, self.k = Statistics(), k
        self.context.start(prompt)
        rule = make_rule(SamplingParameters(seed=seed, **options), VOCAB, prompt, ())  # type: ignore[arg-type]
        small = SmallerModel(self.context.drafts["small"], VOCAB, self.statistics)
        source = NgramLookup(2) if guesser == "ngram" else small if guesser is not None else None
        self.model = ModelDraft(model, rule, self.statistics, source)
        drafter = Drafter(rule, self.statistics, self.model)
        self.round = HostRound(self.context, drafter, rule, self.statistics)

    def run(self, limit: int) -> list[int]:
        found: list[int] = []
        for outcome in decode(self.context, self.round, FixedSchedule(self.k), limit, self.statistics):
            check_invariant(self.context)
            found += outcome.tokens
        return found


def prompt_of(length: int, seed: int) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("guesser", ["ngram", "small"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_draft_models_own_tokens_in_fewer_passes(guesser: str, k: int) -> None:
    passes = {None: 0, guesser: 0}
    for seed in range(4):
        prompt = prompt_of((1, 2, 9, 20)[seed], seed)
        limit = TINY.capacity - len(prompt)  # up to the last row of the cache
        for options in ({}, {"temperature": 0.4}):
            one, other = (Rounds(prompt, name, k, seed, **options) for name in (None, guesser))
            assert other.run(limit) == one.run(limit)
            assert other.statistics.drafted == one.statistics.drafted
            assert other.statistics.accepted_by_position == one.statistics.accepted_by_position
            for name, rounds in ((None, one), (guesser, other)):
                passes[name] += rounds.statistics.draft_passes
            if not options:
                assert tuple(other.context.tokens[len(prompt) :]) == greedy_tokens(other.target, prompt, limit)
            assert (other.statistics.guess_passes > 0) == (guesser == "small" and k > 1)
    assert passes[guesser] == passes[None] if k == 1 else passes[guesser] < passes[None]


@pytest.mark.parametrize("guesser", ["ngram", "small"])
def test_whoever_stops_in_mid_draft_leaves_rows_that_count(guesser: str) -> None:
    for seed in range(6):
        for taken in range(1, 5):
            rounds = Rounds(prompt_of(12, seed), guesser, 5, seed)
            rounds.context.target.prefill(rounds.context.tokens, 11)
            drafting = rounds.model.one_by_one(rounds.context.tokens, RoundPlan(5))
            drafted = [next(drafting) for _ in range(taken)]
            drafting.close()
            rounds.context.tokens += [*drafted, 0]  # as if they had stood
            check_invariant(rounds.context)
