"""Candidates leave the output the target's own: exact."""

from __future__ import annotations

import pytest
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, enumerate_rule
from specexport.runtime.proofs.tree_enumeration import TreeRound, check_trees
from specexport.runtime.sampling.acceptance import verify_tokens


@pytest.mark.parametrize(
    ("vocab", "k", "most", "seed"),
    [
        (3, 1, 1, 33),
        pytest.param(3, 1, 1, 7, marks=pytest.mark.slow),
        pytest.param(2, 2, 1, 7, marks=pytest.mark.slow),
        pytest.param(3, 1, 2, 7, marks=pytest.mark.slow),
        pytest.param(2, 2, 2, 0, marks=pytest.mark.nightly),
    ],
)
def test_candidates_of_the_targets_own_distribution(vocab: int, k: int, most: int, seed: int) -> None:
    target, draft = Chain(vocab, seed), Chain(vocab, 100 + seed)
    result = TreeRound(target, draft, k, most).enumerate()
    assert result.error(target) <= PROBABILITY_TOLERANCE
    assert result.length > enumerate_rule(verify_tokens, target, draft, k).length + 0.02


@pytest.mark.slow
def test_what_verify_runs() -> None:
    result = check_trees()
    assert (result.rule, result.models, result.passed) == ("spectr", 2, True)
