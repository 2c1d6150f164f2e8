"""Leaves and candidates leave the output the target's own: exact, and the enumeration sees what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, enumerate_rule
from specexport.runtime.proofs.tree_enumeration import Choose, TreeRound, all_others, by_draft, check_trees
from specexport.runtime.sampling import rules, spectr
from specexport.runtime.sampling.acceptance import VERIFY, verify_tokens
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.leaves import Leaf
from specexport.runtime.sampling.parameters import Verification
from specexport.runtime.sampling.rules import SamplingRule

TARGET, DRAFT = Chain(3, 33), Chain(3, 133)


def error(verification: Verification, leaves: Choose | int, leaf_rows: Chain | None = None) -> float:
    return TreeRound(verification, TARGET, DRAFT, 1, leaves, leaf_rows).enumerate().error(TARGET)


@pytest.mark.parametrize("choose", [all_others, by_draft])
@pytest.mark.parametrize(("vocab", "k"), [(4, 1), (3, 2)])
@pytest.mark.parametrize("verification", ["block", "token"])
def test_leaves_of_the_targets_own_distribution(verification: Verification, vocab: int, k: int, choose: Choose) -> None:
    target, draft = Chain(vocab, 7), Chain(vocab, 107)
    result = TreeRound(verification, target, draft, k, choose).enumerate()
    assert result.error(target) <= PROBABILITY_TOLERANCE
    alone = enumerate_rule(VERIFY[verification], target, draft, k).length
    if choose is all_others:
        assert result.length > alone + 0.1
        assert k > 1 or result.length == pytest.approx(2)  # what is rejected is caught


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocab", "k", "most", "seed"),
    [(3, 1, 1, 7), (2, 2, 1, 7), (3, 1, 2, 7), pytest.param(2, 2, 2, 0, marks=pytest.mark.nightly)],
)
def test_candidates_of_the_targets_own_distribution(vocab: int, k: int, most: int, seed: int) -> None:
    target, draft = Chain(vocab, seed), Chain(vocab, 100 + seed)
    result = TreeRound("spectr", target, draft, k, most).enumerate()
    assert result.error(target) <= PROBABILITY_TOLERANCE
    assert result.length > enumerate_rule(verify_tokens, target, draft, k).length + 0.02


@pytest.mark.slow
def test_what_verify_runs() -> None:
    results = check_trees()
    assert [entry.rule for entry in results] == ["leaves after block", "leaves after token", "spectr"]
    assert all(entry.passed for entry in results)


@pytest.mark.parametrize(("verification", "leaves"), [("block", all_others), ("spectr", 1)])
def test_mutant_a_leafs_row_of_the_draft(verification: Verification, leaves: Choose | int) -> None:
    assert error(verification, leaves, DRAFT) > 1e-2


Accept = Callable[[SamplingRule, np.ndarray, Sequence[int], Sequence[Leaf]], tuple[int, list[int]]]


def with_used_noise(
    self: SamplingRule, logits: np.ndarray, drafted: Sequence[int], leaves: Sequence[Leaf]
) -> tuple[int, list[int]]:
    """The token after a leaf by the uniform that drew the leaf."""
    used = list(self._target_noise.uniforms)  # type: ignore[attr-defined]
    rows = len(drafted) + 1
    count, token = self.accept(logits[:rows], drafted)
    leaf = rules.matching_leaf(leaves, count, token)
    if leaf is None:
        return count, [token]
    self._target_noise.uniforms = used[rows - 1 : rows]  # type: ignore[attr-defined]
    return count, [token, self.accept(logits[rows + leaf][None], [])[1]]


def without_a_look_at_the_token(
    self: SamplingRule, logits: np.ndarray, drafted: Sequence[int], leaves: Sequence[Leaf]
) -> tuple[int, list[int]]:
    """Whatever leaf lies in the place stands."""
    rows = len(drafted) + 1
    count, token = self.accept(logits[:rows], drafted)
    for index, leaf in enumerate(leaves):
        if leaf.place == count:
            return count, [leaf.token, self.accept(logits[rows + index][None], [])[1]]
    return count, [token]


@pytest.mark.parametrize("mutant", [with_used_noise, without_a_look_at_the_token])
def test_mutants_of_the_rule(mutant: Accept, monkeypatch: pytest.MonkeyPatch) -> None:
    assert error("block", all_others) <= PROBABILITY_TOLERANCE
    monkeypatch.setattr(SamplingRule, "accept_tree", mutant)
    assert error("block", all_others) > 1e-2


def token_residual(target: Distribution, draft: Distribution, candidates: Sequence[int], uniforms: np.ndarray) -> int:
    """What token verification leaves over."""
    rho, _ = spectr._division(target.probs, draft.over(target), len(candidates))
    for token, uniform in zip(candidates, uniforms, strict=False):
        if uniform * rho * draft.of(token) < target.of(token):
            return token
    return target.excess(1.0, draft).draw(float(uniforms[-1]))


def test_mutant_the_residual_of_token_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectr, "judge", token_residual)
    assert error("spectr", 1) > 1e-3


@pytest.mark.slow
def test_rho_may_be_too_large_and_never_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    original = spectr._division

    def moved(factor: float) -> None:
        def division(target: np.ndarray, draft: np.ndarray, count: int) -> tuple[float, float]:
            rho = original(target, draft, count)[0] * factor
            return rho, 1.0 - (1.0 - float(np.minimum(draft, target / rho).sum())) ** count

        monkeypatch.setattr(spectr, "_division", division)

    whole = TreeRound("spectr", TARGET, DRAFT, 1, 1)
    exact = whole.enumerate().length
    moved(1.1)
    assert whole.enumerate().error(TARGET) <= PROBABILITY_TOLERANCE
    assert whole.enumerate().length < exact
    moved(0.95)
    assert error("spectr", 1) > 1e-3
