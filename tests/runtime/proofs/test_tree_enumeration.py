"""Leaves leave the output the target's own: exact by enumeration, and the enumeration sees what would not be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, enumerate_rule
from specexport.runtime.proofs.tree_enumeration import (
    Choose,
    all_others,
    by_what_was_drawn,
    check_leaves,
    enumerate_tree,
    tree_run,
)
from specexport.runtime.sampling import rules
from specexport.runtime.sampling.acceptance import VERIFY
from specexport.runtime.sampling.leaves import Leaf
from specexport.runtime.sampling.parameters import Verification
from specexport.runtime.sampling.rules import SamplingRule

TARGET, DRAFT = Chain(4, 7), Chain(4, 107)


@pytest.mark.parametrize("choose", [all_others, by_what_was_drawn])
@pytest.mark.parametrize(("vocab", "k"), [(4, 1), (3, 2)])
@pytest.mark.parametrize("verification", ["block", "token"])
def test_the_targets_own_distribution(verification: Verification, vocab: int, k: int, choose: Choose) -> None:
    target, draft = Chain(vocab, 7), Chain(vocab, 107)
    found = enumerate_tree(tree_run(verification, target, draft, choose), target, draft, k)
    assert found.error(target) <= PROBABILITY_TOLERANCE
    alone = enumerate_rule(VERIFY[verification], target, draft, k).length
    if choose is all_others:
        assert found.length > alone + 0.1
        assert k > 1 or found.length == pytest.approx(2)  # what is rejected is caught


def test_what_verify_runs() -> None:
    found = check_leaves()
    assert [entry.rule for entry in found] == ["leaves behind block", "leaves behind token"]
    assert all(entry.passed for entry in found)


def error(choose: Choose = all_others, behind: Chain | None = None) -> float:
    return enumerate_tree(tree_run("block", TARGET, DRAFT, choose, behind), TARGET, DRAFT, 1).error(TARGET)


def test_mutant_a_leafs_row_of_the_draft() -> None:
    assert error(behind=DRAFT) > 1e-2


Accept = Callable[[SamplingRule, np.ndarray, Sequence[int], Sequence[Leaf]], tuple[int, list[int]]]


def with_used_noise(
    self: SamplingRule, logits: np.ndarray, drafted: Sequence[int], leaves: Sequence[Leaf]
) -> tuple[int, list[int]]:
    """The token behind a leaf by the uniform that drew the leaf."""
    used = list(self._target_noise.uniforms)  # type: ignore[attr-defined]
    rows = len(drafted) + 1
    count, token = self.accept(logits[:rows], drafted)
    leaf = rules.caught(leaves, count, token)
    if leaf is None:
        return count, [token]
    self._target_noise.uniforms = used[rows - 1 : rows]  # type: ignore[attr-defined]
    return count, [token, self.accept(logits[rows + leaf][None], [])[1]]


def by_the_siblings_row(
    self: SamplingRule, logits: np.ndarray, drafted: Sequence[int], leaves: Sequence[Leaf]
) -> tuple[int, list[int]]:
    """The row behind the draft token in the leaf's place."""
    rows = len(drafted) + 1
    count, token = self.accept(logits[:rows], drafted)
    if rules.caught(leaves, count, token) is None:
        return count, [token]
    return count, [token, self.accept(logits[count + 1][None], [])[1]]


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


@pytest.mark.parametrize("mutant", [with_used_noise, by_the_siblings_row, without_a_look_at_the_token])
def test_mutants_of_the_rule(mutant: Accept, monkeypatch: pytest.MonkeyPatch) -> None:
    assert error() <= PROBABILITY_TOLERANCE
    monkeypatch.setattr(SamplingRule, "accept_tree", mutant)
    assert error() > 1e-2
