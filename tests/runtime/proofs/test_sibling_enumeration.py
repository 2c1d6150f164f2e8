"""Several candidates in a place leave the output the target's own: exact, and the enumeration sees what is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, enumerate_rule
from specexport.runtime.proofs.sibling_enumeration import Comb, check_siblings, enumerate_comb
from specexport.runtime.sampling import sibling_rules
from specexport.runtime.sampling.acceptance import verify_tokens
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import Verification
from specexport.runtime.sampling.sibling_rules import (
    SIBLING_RULES,
    SiblingRule,
    draw_with_replacement,
    draw_without_replacement,
    judge_recursive,
    judge_spectr,
)

SLOW = pytest.mark.nightly
TARGET, DRAFT = Chain(3, 33), Chain(3, 133)


@pytest.mark.parametrize("verification", ["spectr", "recursive"])
@pytest.mark.parametrize(
    ("vocab", "k", "most", "seed"),
    [
        (3, 1, 1, 7),
        (2, 2, 1, 7),
        pytest.param(3, 1, 2, 7, marks=SLOW),
        pytest.param(2, 2, 2, 0, marks=SLOW),
        pytest.param(3, 2, 1, 0, marks=SLOW),
    ],
)
def test_the_targets_own_distribution(verification: Verification, vocab: int, k: int, most: int, seed: int) -> None:
    target, draft = Chain(vocab, seed), Chain(vocab, 100 + seed)
    found = enumerate_comb(Comb(verification, target, draft, k, most))
    assert found.error(target) <= PROBABILITY_TOLERANCE
    assert found.length > enumerate_rule(verify_tokens, target, draft, k).length + 0.02


@SLOW
def test_what_verify_runs() -> None:
    found = check_siblings()
    assert [entry.rule for entry in found] == ["spectr", "recursive"]
    assert all(entry.passed for entry in found)


def error(verification: Verification, behind: Chain | None = None) -> float:
    return enumerate_comb(Comb(verification, TARGET, DRAFT, 1, 1, behind)).error(TARGET)


def test_mutant_a_candidates_row_of_the_draft() -> None:
    assert error("recursive", behind=DRAFT) > 1e-2


def token_residual(target: Distribution, draft: Distribution, candidates: Sequence[int], uniforms: np.ndarray) -> int:
    """What token verification leaves over."""
    rho, _ = sibling_rules._division(target.probs, draft.over(target), len(candidates))
    for token, uniform in zip(candidates, uniforms, strict=False):
        if uniform * rho * draft.of(token) < target.of(token):
            return token
    return target.excess(1.0, draft).draw(float(uniforms[-1]))


def same_draft_for_all(
    target: Distribution, draft: Distribution, candidates: Sequence[int], uniforms: np.ndarray
) -> int:
    """Recursive rejection as if the candidates were independent draws."""
    for token, uniform in zip(candidates, uniforms, strict=False):
        if uniform * draft.of(token) < target.of(token):
            return token
        left = target.excess(1.0, draft)
        target = left.scaled(1.0 / left.mass) if left.mass else target
    return target.draw(float(uniforms[-1]))


MUTANTS: dict[str, tuple[Verification, SiblingRule]] = {
    "the residual of token verification": ("spectr", SiblingRule(draw_with_replacement, token_residual)),
    "distinct candidates judged as independent": ("spectr", SiblingRule(draw_without_replacement, judge_spectr)),
    "distinct candidates by the same row": ("recursive", SiblingRule(draw_without_replacement, same_draft_for_all)),
    "independent draws judged as distinct": ("recursive", SiblingRule(draw_with_replacement, judge_recursive)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_rules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verification, mutant = MUTANTS[name]
    monkeypatch.setitem(SIBLING_RULES, verification, mutant)
    assert error(verification) > 1e-3


def test_rho_may_be_too_large_and_never_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sibling_rules._division

    def moved(factor: float) -> None:
        def division(target: np.ndarray, draft: np.ndarray, count: int) -> tuple[float, float]:
            rho = original(target, draft, count)[0] * factor
            return rho, 1.0 - (1.0 - float(np.minimum(draft, target / rho).sum())) ** count

        monkeypatch.setattr(sibling_rules, "_division", division)

    exact = enumerate_comb(Comb("spectr", TARGET, DRAFT, 1, 1)).length
    moved(1.1)
    larger = enumerate_comb(Comb("spectr", TARGET, DRAFT, 1, 1))
    assert larger.error(TARGET) <= PROBABILITY_TOLERANCE
    assert larger.length < exact
    moved(0.95)
    assert error("spectr") > 1e-3
