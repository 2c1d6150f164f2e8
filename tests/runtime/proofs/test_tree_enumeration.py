"""Candidates leave the output the target's own: exact, and the enumeration sees what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, enumerate_rule
from specexport.runtime.proofs.tree_enumeration import TreeRound, check_trees
from specexport.runtime.sampling import rules, spectr
from specexport.runtime.sampling.acceptance import verify_tokens
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.rules import SamplingRule
from specexport.runtime.sampling.spectr import Candidate

TARGET, DRAFT = Chain(3, 33), Chain(3, 133)


def error(candidate_rows: Chain | None = None) -> float:
    return TreeRound(TARGET, DRAFT, 1, 1, candidate_rows).enumerate().error(TARGET)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocab", "k", "most", "seed"),
    [(3, 1, 1, 7), (2, 2, 1, 7), (3, 1, 2, 7), pytest.param(2, 2, 2, 0, marks=pytest.mark.nightly)],
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


def test_mutant_a_candidates_row_of_the_draft() -> None:
    assert error(DRAFT) > 1e-2


Accept = Callable[[SamplingRule, np.ndarray, Sequence[int], Sequence[Candidate]], tuple[int, list[int]]]


def with_used_noise(
    self: SamplingRule, logits: np.ndarray, drafted: Sequence[int], candidates: Sequence[Candidate]
) -> tuple[int, list[int]]:
    """The token after a candidate by the uniform that judged the candidate."""
    used = list(self._target_noise.uniforms)  # type: ignore[attr-defined]
    rows = len(drafted) + 1
    count, token = self.accept(logits[:rows], drafted)
    found = rules.matching_candidate(candidates, count, token)
    if found is None:
        return count, [token]
    self._target_noise.uniforms = used[1:2]  # type: ignore[attr-defined]
    return count, [token, self.accept(logits[rows + found][None], [])[1]]


def without_a_look_at_the_token(
    self: SamplingRule, logits: np.ndarray, drafted: Sequence[int], candidates: Sequence[Candidate]
) -> tuple[int, list[int]]:
    """Whatever candidate lies in the place stands."""
    rows = len(drafted) + 1
    count, token = self.accept(logits[:rows], drafted)
    for index, one in enumerate(candidates):
        if one.place == count:
            return count, [one.token, self.accept(logits[rows + index][None], [])[1]]
    return count, [token]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [with_used_noise, without_a_look_at_the_token])
def test_mutants_of_the_rule(mutant: Accept, monkeypatch: pytest.MonkeyPatch) -> None:
    assert error() <= PROBABILITY_TOLERANCE
    monkeypatch.setattr(SamplingRule, "accept_tree", mutant)
    assert error() > 1e-2


def token_residual(target: Distribution, draft: Distribution, drawn: Sequence[int], uniforms: np.ndarray) -> int:
    """What token verification leaves over."""
    rho, _ = spectr._division(target.probs, draft.over(target), len(drawn))
    for token, uniform in zip(drawn, uniforms, strict=False):
        if uniform * rho * draft.of(token) < target.of(token):
            return token
    return target.excess(1.0, draft).draw(float(uniforms[-1]))


def test_mutant_the_residual_of_token_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectr, "judge", token_residual)
    assert error() > 1e-3


@pytest.mark.slow
def test_rho_may_be_too_large_and_never_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    original = spectr._division

    def moved(factor: float) -> None:
        def division(target: np.ndarray, draft: np.ndarray, count: int) -> tuple[float, float]:
            rho = original(target, draft, count)[0] * factor
            return rho, 1.0 - (1.0 - float(np.minimum(draft, target / rho).sum())) ** count

        monkeypatch.setattr(spectr, "_division", division)

    whole = TreeRound(TARGET, DRAFT, 1, 1)
    exact = whole.enumerate().length
    moved(1.1)
    assert whole.enumerate().error(TARGET) <= PROBABILITY_TOLERANCE
    assert whole.enumerate().length < exact
    moved(0.95)
    assert error() > 1e-3
