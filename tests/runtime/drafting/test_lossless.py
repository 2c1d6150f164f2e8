"""What drafters propose leaves the output the target's own, exactly: enumerated with models behind caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.drafting.drafters import Drafter
from specexport.runtime.drafting.lookup import NgramLookup
from specexport.runtime.drafting.model_draft import ModelDraft, SmallerModel
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, Enumeration, Tokens, integrate
from specexport.runtime.proofs.tree_enumeration import FixedNoise, as_logits
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import SamplingParameters, Verification
from specexport.runtime.sampling.rules import SamplingRule
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.statistics import Statistics
from support.doubles import FeedsByStep

# (rule, draft tokens, the smaller model's rows in their places) -> the draft that is judged
Mutant = Callable[[SamplingRule, list[int], list[np.ndarray]], list[int]]
PARAMETERS = {name: SamplingParameters(temperature=1.0, verification=name) for name in ("block", "token")}  # type: ignore[arg-type]


class ChainDecoder(FeedsByStep):
    """A model of `enumeration.py` behind a cache; it does not see the prompt."""

    def __init__(self, chain: Chain, prompt: int) -> None:
        self.vocab_size, self._chain, self._tokens, self._prompt = chain.vocab, chain, [0] * 16, prompt

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        self._tokens[position : position + len(tokens)] = tokens
        ends = range(position + 1, position + len(tokens) + 1)
        return np.stack([as_logits(self._chain.after(tuple(self._tokens[self._prompt : end]))) for end in ends])

    def overwrite_rows(self, start: int, value: float) -> None:
        raise NotImplementedError


def exact(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    return drafted


def enumerated(
    verification: Verification, seed: int, vocab: int, k: int, prompt: Sequence[int], mutant: Mutant = exact
) -> tuple[float, set[int]]:
    """(the error of the output, the numbers of passes of the model that rounds took).

    Without a prompt in which something is looked up, a smaller model drafts for the model.
    """
    target, model, small = (Chain(vocab, seed + place) for place in (0, 100, 200))
    passes = set()

    def play(uniforms: Sequence[float]) -> tuple[Tokens, int, int]:
        statistics = Statistics()
        rule = SamplingRule(PARAMETERS[verification], vocab, noise=(FixedNoise(uniforms[:k]), FixedNoise(uniforms[k:])))
        cached = CachedDecoder(ChainDecoder(model, len(prompt)), 8, widest=k + 2)
        if any(prompt):
            lookup = [NgramLookup(2)]
            drafter = Drafter(rule, statistics, ModelDraft(cached, rule, statistics), lookup)
        else:
            smaller = SmallerModel(CachedDecoder(ChainDecoder(small, len(prompt)), 8), vocab, statistics)
            drafter = Drafter(rule, statistics, ModelDraft(cached, rule, statistics, smaller))
        drafted = drafter.propose(prompt, RoundPlan(k)).tokens
        drafted = mutant(rule, drafted, [small.after(tuple(drafted[:place])) for place in range(len(drafted))])
        passes.add(statistics.draft_passes)
        rows = np.stack([as_logits(target.after(tuple(drafted[:place]))) for place in range(len(drafted) + 1)])
        return tuple(drafted), *rule.accept(rows, drafted)

    results = (((*drafted[:count], token), p) for (drafted, count, token), p in integrate(play, 2 * k + 1))
    return Enumeration.of(results, target, k).error(target), passes


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(("vocab", "k"), [(2, 2), pytest.param(3, 2, marks=pytest.mark.nightly)])
def test_a_cascade_of_three_is_exact(verification: Verification, vocab: int, k: int) -> None:
    error, passes = enumerated(verification, 4, vocab, k, (0, 0))
    assert error <= PROBABILITY_TOLERANCE
    assert min(passes) < k


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(("prompt", "seed"), [((0, 1, 2, 0, 2, 1, 1), 0), ((0, 1, 2, 2, 1), 1)])
def test_lookups_after_the_models_tokens_are_exact(verification: Verification, prompt: Tokens, seed: int) -> None:
    error, passes = enumerated(verification, seed, 3, 2, prompt)
    assert error <= PROBABILITY_TOLERANCE
    assert len(passes) > 1


def judged_by_the_smaller_model(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    rule._draft_probs = [Distribution(row) for row in rows]
    return drafted


def without_the_follower(rule: SamplingRule, drafted: list[int], rows: list[np.ndarray]) -> list[int]:
    """Only what was guessed goes along."""
    same = [token == row.argmax() for token, row in zip(drafted, rows, strict=True)]
    count = same.index(False) if False in same else len(same)
    del rule._draft_probs[count:], rule._drafted[count:]
    return drafted[:count]


@pytest.mark.parametrize("mutant", [judged_by_the_smaller_model, without_the_follower])
def test_mutants_of_the_cascade(mutant: Mutant) -> None:
    assert enumerated("token", 33, 3, 1, (0, 0), mutant)[0] > 1e-2
