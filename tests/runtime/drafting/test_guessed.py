"""A draft model for which something cheaper drafts: the same tokens in fewer passes, and a chain of three is exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import LOOKUPS, Draft
from specexport.runtime.drafting.guessed import CascadeDraft, CascadeSource, ModelCascadeSource
from specexport.runtime.drafting.model_draft import ModelDraft
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.loop.speculate import HostRound, decode
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, Enumeration, outcomes, shares
from specexport.runtime.proofs.tree_enumeration import Given, as_logits
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import SamplingParameters, Verification
from specexport.runtime.sampling.rules import SamplingRule, make_rule
from specexport.runtime.state.context import CachedDecoder, Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, FeedsByStep, check_invariant, greedy_tokens

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
        self.draft: Draft = ModelDraft(model, rule, self.statistics)
        if guesser is not None:
            small = ModelCascadeSource(self.context.drafts["small"], VOCAB, self.statistics)
            guess: CascadeSource = LOOKUPS[guesser](2) if guesser in LOOKUPS else small
            self.draft = CascadeDraft(model, guess, rule, self.statistics)
        self.round = HostRound(self.context, self.draft, rule, self.statistics)

    def run(self, limit: int) -> list[int]:
        found: list[int] = []
        for outcome in decode(self.context, self.round, FixedSchedule(self.k), limit, self.statistics):
            check_invariant(self.context)
            found += outcome.tokens
        return found


def prompt_of(length: int, seed: int) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("guesser", ["ngram", "suffix", "small"])
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
            assert isinstance(rounds.draft, CascadeDraft)
            drafting = rounds.draft.one_by_one(rounds.context.tokens, RoundPlan(5))
            drafted = [next(drafting) for _ in range(taken)]
            drafting.close()
            rounds.context.tokens += [*drafted, 0]  # as if they had stood
            check_invariant(rounds.context)


class ChainDecoder(FeedsByStep):
    """A model of `enumeration.py` behind a cache."""

    def __init__(self, chain: Chain) -> None:
        self.vocab_size, self._chain, self._tokens = chain.vocab, chain, [0] * 16

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        self._tokens[position : position + len(tokens)] = tokens
        ends = range(position + 1, position + len(tokens) + 1)
        # The sequence begins with two tokens that the chains do not know.
        return np.stack([as_logits(self._chain.after(tuple(self._tokens[2:end]))) for end in ends])

    def overwrite_rows(self, start: int, value: float) -> None:
        raise NotImplementedError


# (rule, draft tokens, the smaller model's rows in their places) -> the draft that is judged
Mutant = Callable[[SamplingRule, list[int], list[np.ndarray]], list[int]]


def exact(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    return drafted


def judged_by_the_smaller_model(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    rule._draft_probs = [Distribution(row) for row in rows]
    return drafted


def without_the_follower(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    """Only what was guessed goes along."""
    same = [token == row.argmax() for token, row in zip(drafted, rows, strict=True)]
    count = same.index(False) if False in same else len(same)
    del rule._draft_probs[count:], rule._drafted[count:]
    return drafted[:count]


def follower_by_the_residual(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    for place, (token, row) in enumerate(zip(drafted, rows, strict=True)):
        if token != row.argmax():
            rule._draft_probs[place] = rule._draft_probs[place].without(int(row.argmax()))
    return drafted


def enumerate_chain(verification: Verification, mutant: Mutant, vocab: int, k: int, seed: int) -> tuple[float, int]:
    """(the error of a chain of three, rounds that took fewer passes of the middle model than tokens)."""
    target, middle, small = (Chain(vocab, seed + place) for place in (0, 100, 200))
    rng, fewer = np.random.default_rng(seed), 0

    def draft(uniforms: Sequence[float]) -> tuple[SamplingRule, list[int], Given, int]:
        drawn, judged, statistics = Given(), Given(), Statistics()
        parameters = SamplingParameters(temperature=1.0, verification=verification)
        rule = SamplingRule(parameters, vocab, noise=(drawn, judged))
        drawn.uniforms = list(uniforms)
        guess = ModelCascadeSource(CachedDecoder(ChainDecoder(small), 8), vocab, statistics)
        cached = CachedDecoder(ChainDecoder(middle), 8, widest=k + 2)
        drafted = CascadeDraft(cached, guess, rule, statistics).propose([0, 0], RoundPlan(k)).tokens
        rows = [small.after(tuple(drafted[:place])) for place in range(k)]
        return rule, mutant(rule, drafted, rows), judged, statistics.draft_passes

    def ways(uniforms: list[float]) -> list[tuple[list[float], float]]:
        if len(uniforms) == k:
            return [(uniforms, 1.0)]
        later = [0.5] * (k - len(uniforms) - 1)
        found, below = [], 0.0
        for share in shares(lambda uniform: proposed([*uniforms, uniform, *later])[len(uniforms)], vocab):
            if share:
                found += [(way, share * rest) for way, rest in ways([*uniforms, below + share / 2])]
            below += share
        return found

    def proposed(uniforms: list[float]) -> tuple[int, ...]:
        drawn = Given()
        drawn.uniforms = list(uniforms)
        rule = SamplingRule(SamplingParameters(temperature=1.0), vocab, noise=(drawn, Given()))
        guess = ModelCascadeSource(CachedDecoder(ChainDecoder(small), 8), vocab, Statistics())
        cached = CachedDecoder(ChainDecoder(middle), 8, widest=k + 2)
        return tuple(CascadeDraft(cached, guess, rule, Statistics()).propose([0, 0], RoundPlan(k)).tokens)

    joint: dict[tuple[int, ...], float] = defaultdict(float)
    for uniforms, probability in ways([]):
        drafted = tuple(draft(uniforms)[1])
        fewer += draft(uniforms)[3] < k

        def run(tokens: tuple[int, ...], judging: Sequence[float], given: list[float] = uniforms) -> tuple[int, int]:
            rule, found, judged, _ = draft(given)
            judged.uniforms = list(judging)
            rows = np.stack([as_logits(target.after(tuple(found[:place]))) for place in range(len(found) + 1)])
            return rule.accept(rows, found)

        for count, token, share in outcomes(run, drafted, vocab, rng):
            head = (*drafted[:count], token)
            tails = [()] if len(head) > k else list(np.ndindex(*[vocab] * (k + 1 - len(head))))
            for tail in tails:
                joint[head + tail] += probability * share * target.probability(head + tail, given=len(head))
    return Enumeration(dict(joint), 0.0).error(target), fewer


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(("vocab", "k"), [(2, 2), pytest.param(3, 2, marks=pytest.mark.nightly)])
def test_a_chain_of_three_is_exact(verification: Verification, vocab: int, k: int) -> None:
    error, fewer = enumerate_chain(verification, exact, vocab, k, 4)
    assert error <= PROBABILITY_TOLERANCE
    assert fewer > 0


@pytest.mark.parametrize("mutant", [judged_by_the_smaller_model, without_the_follower, follower_by_the_residual])
def test_mutants_of_the_chain(mutant: Mutant) -> None:
    assert enumerate_chain("token", mutant, 3, 1, 33)[0] > 1e-2
