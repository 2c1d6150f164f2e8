"""L0 of docs/losslessness.md: the verification rules, enumerated in float64 and not sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.proofs.enumeration import (
    PROBABILITY_TOLERANCE,
    SIZES,
    Chain,
    enumerate_rule,
)
from specexport.runtime.sampling.acceptance import VERIFY, verify_block, verify_tokens
from specexport.runtime.sampling.distribution import Distribution

Target = Callable[[int], Distribution]
Drafts = Sequence[Distribution]


class Fixed(Chain):
    """The same distribution behind every context."""

    def __init__(self, *probs: float) -> None:
        super().__init__(len(probs), 0)
        self.probs = np.array(probs)

    def after(self, context: tuple[int, ...]) -> np.ndarray:
        return self.probs


@pytest.mark.parametrize("rule", VERIFY)
@pytest.mark.parametrize(("vocab", "k"), SIZES)
@pytest.mark.parametrize("seed", range(2))
def test_the_output_is_the_targets_own(rule: str, vocab: int, k: int, seed: int) -> None:
    target = Chain(vocab, seed)
    result = enumerate_rule(VERIFY[rule], target, Chain(vocab, 100 + seed), k)
    assert sum(result.joint.values()) == pytest.approx(1.0, abs=PROBABILITY_TOLERANCE)
    assert result.error(target) <= PROBABILITY_TOLERANCE


@pytest.mark.slow
def test_block_verification_gives_at_least_as_many_tokens() -> None:
    gains = []
    for vocab, k in SIZES:
        for seed in range(4):
            target, draft = Chain(vocab, seed), Chain(vocab, 100 + seed)
            block, token = (enumerate_rule(rule, target, draft, k).length for rule in (verify_block, verify_tokens))
            gains.append(block - token)
            if k == 1:
                assert block == pytest.approx(token, abs=1e-12)
    assert min(gains) > -1e-12
    assert max(gains) > 0.01


def test_a_greedy_draft_judged_by_its_softmax_is_found_out() -> None:
    """The figures of facts/speculation: (.833, 0, .167) comes out for a target of (.5, .3, .2)."""
    target, softmax, greedy = Fixed(0.5, 0.3, 0.2), Fixed(0.6, 0.3, 0.1), Fixed(1.0, 0.0, 0.0)
    result = enumerate_rule(verify_tokens, target, greedy, 1, judged_by=softmax)
    first = [sum(p for tokens, p in result.joint.items() if tokens[0] == token) for token in range(3)]
    assert first == pytest.approx([5 / 6, 0.0, 1 / 6], abs=1e-12)
    assert result.error(target) > 0.1
    assert enumerate_rule(verify_tokens, target, greedy, 1).error(target) <= PROBABILITY_TOLERANCE
