"""What drafters propose leaves the output the target's own, exactly: enumerated with models behind caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from specexport.runtime.drafting.drafters import Drafter
from specexport.runtime.drafting.lookup import NgramLookup
from specexport.runtime.drafting.model_draft import ModelDraft
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, Enumeration, Tokens, integrate
from specexport.runtime.proofs.tree_enumeration import FixedNoise, as_logits
from specexport.runtime.sampling.parameters import SamplingParameters, Verification
from specexport.runtime.sampling.rules import SamplingRule
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.statistics import Statistics
from support.doubles import FeedsByStep

VOCAB, K = 3, 2
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


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(("prompt", "seed"), [((0, 1, 2, 0, 2, 1, 1), 0), ((0, 1, 2, 2, 1), 1)])
def test_lookups_after_the_models_tokens_are_exact(verification: Verification, prompt: Tokens, seed: int) -> None:
    target, model = Chain(VOCAB, seed), Chain(VOCAB, seed + 100)
    passes = set()

    def play(uniforms: Sequence[float]) -> tuple[Tokens, int, int]:
        statistics = Statistics()
        rule = SamplingRule(PARAMETERS[verification], VOCAB, noise=(FixedNoise(uniforms[:K]), FixedNoise(uniforms[K:])))
        cached = CachedDecoder(ChainDecoder(model, len(prompt)), 8)
        drafter = Drafter(rule, ModelDraft(cached, rule, statistics), [NgramLookup(2)])
        drafted = drafter.propose(prompt, RoundPlan(K)).tokens
        passes.add(statistics.draft_passes)
        rows = np.stack([as_logits(target.after(tuple(drafted[:place]))) for place in range(len(drafted) + 1)])
        return tuple(drafted), *rule.accept(rows, drafted)

    results = (((*drafted[:count], token), p) for (drafted, count, token), p in integrate(play, 2 * K + 1))
    assert Enumeration.of(results, target, K).error(target) <= PROBABILITY_TOLERANCE
    assert len(passes) > 1
