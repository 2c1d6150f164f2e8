"""The verification rules at their edges; that they are exact, tests/runtime/proofs/test_enumeration.py says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from specexport.runtime.sampling.acceptance import VERIFY, Verify, verify_block, verify_tokens
from specexport.runtime.sampling.distribution import Distribution

ALMOST_ONE = math.nextafter(1.0, 0.0)
RULES = list(VERIFY.values())


class Target:
    """The target's distributions, and for which places they were asked."""

    def __init__(self, *rows: Sequence[float] | Distribution) -> None:
        self.rows = [row if isinstance(row, Distribution) else of(*row) for row in rows]
        self.asked: set[int] = set()

    def __call__(self, index: int) -> Distribution:
        self.asked.add(index)
        return self.rows[index]


def of(*probs: float) -> Distribution:
    return Distribution(np.array(probs))


def run(
    verify: Verify, target: Target, drafts: Sequence[Distribution], tokens: Sequence[int], *uniforms: float
) -> tuple[int, int]:
    return verify(target, drafts, tokens, np.array(uniforms))


@pytest.mark.parametrize("verify", RULES)
def test_without_a_draft_the_token_is_the_targets(verify: Verify) -> None:
    for uniform, token in ((0.0, 0), (0.24, 0), (0.26, 2), (ALMOST_ONE, 2)):
        assert run(verify, Target([0.25, 0.0, 0.75]), [], [], uniform) == (0, token)


@pytest.mark.parametrize("verify", RULES)
def test_a_uniform_of_zero_never_accepts_what_the_target_excludes(verify: Verify) -> None:
    assert run(verify, Target([0.0, 1.0], [0.5, 0.5]), [of(1.0, 0.0)], [0], 0.0, 0.0) == (0, 1)
    target = Target([0.5, 0.5], [0.0, 1.0], [0.5, 0.5])
    assert run(verify, target, [of(0.5, 0.5), of(0.5, 0.5)], [0, 0], 0.0, 0.0, 0.0) == (1, 1)


@pytest.mark.parametrize("verify", RULES)
def test_a_uniform_at_the_ratio_rejects(verify: Verify) -> None:
    for target, draft in (
        (of(0.25, 0.75), of(0.5, 0.5)),
        (of(0.5, 0.5), of(1.0, 0.0)),
        (of(0.5, 0.5), Distribution.point_mass(0)),
    ):
        assert run(verify, Target(target, [1.0, 0.0]), [draft], [0], math.nextafter(0.5, 0), 0.0) == (1, 0)
        assert run(verify, Target(target, [1.0, 0.0]), [draft], [0], 0.5, 0.0) == (0, 1)


@pytest.mark.parametrize("verify", RULES)
def test_a_residual_that_rounds_to_nothing_means_the_target(verify: Verify) -> None:
    # The draft's 0.5 is one ulp too large, so the uniform next to 1 rejects although no mass is left over.
    draft = of(math.nextafter(0.5, 1), 0.0, math.nextafter(0.5, 1))
    for uniform, token in ((0.0, 0), (0.49, 0), (0.51, 2), (ALMOST_ONE, 2)):
        assert run(verify, Target([0.5, 0.0, 0.5], [1.0, 0.0, 0.0]), [draft], [0], ALMOST_ONE, uniform) == (0, token)


@pytest.mark.parametrize("verify", RULES)
def test_few_tokens_or_all_of_them_is_the_same(verify: Verify) -> None:
    """The same distributions as a dense row and as their support alone."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = (
            rng.dirichlet(np.full(5, 0.5), size=3) * (rng.random((3, 5)) < 0.7)
            + np.eye(5)[rng.integers(5, size=3)] * 1e-3
        )
        drafts = rng.dirichlet(np.full(5, 0.5), size=2)
        rows /= rows.sum(axis=1, keepdims=True)
        tokens, uniforms = [int(rng.choice(5, p=draft)) for draft in drafts], rng.random(3)
        dense = run(verify, Target(*rows), [of(*draft) for draft in drafts], tokens, *uniforms)
        sparse = [Distribution(row[row > 0], np.flatnonzero(row)) for row in (*rows, *drafts)]
        assert run(verify, Target(*sparse[:3]), sparse[3:], tokens, *uniforms) == dense


def test_token_verification_asks_for_no_row_behind_the_first_rejection() -> None:
    drafts, tokens = [of(0.5, 0.5)] * 3, [0, 0, 0]
    for place in range(4):
        rows = [[1.0, 0.0]] * 4
        if place < 3:
            rows[place] = [0.0, 1.0]
        target = Target(*rows)
        assert run(verify_tokens, target, drafts, tokens, 0.0, 0.0, 0.0, 0.0)[0] == place
        assert target.asked == set(range(place + 1))


def test_block_verification_asks_for_no_row_behind_what_is_impossible() -> None:
    drafts, tokens = [of(0.5, 0.5)] * 3, [0, 0, 0]
    for place in range(3):
        rows = [[0.5, 0.5]] * 4
        rows[place] = [0.0, 1.0]
        target = Target(*rows)
        run(verify_block, target, drafts, tokens, 0.0, 0.0, 0.0, 0.0)
        assert target.asked == set(range(place + 1))


def test_block_verification_asks_for_the_last_row_only_when_all_stand() -> None:
    drafts, tokens = [of(0.5, 0.5)] * 2, [0, 0]
    for uniform, asked in ((0.0, {0, 1, 2}), (0.9, {0, 1})):
        target = Target([0.5, 0.5], [0.25, 0.75], [0.5, 0.5])
        assert run(verify_block, target, drafts, tokens, 0.0, uniform, 0.0)[0] == len(asked) - 1
        assert target.asked == asked


@pytest.mark.parametrize("left", [5e-324, 1e-44, 1e-30, 1e-17, 1e-16, 3e-16, 1e-10])
def test_hardly_anything_left_over_is_no_doubt_either(left: float) -> None:
    """P_1 = 1 means that the first token stands, however small Z_1 is: h_1 = Z_1 / (Z_1 + 0)."""
    drafts = [of(1.0, 0.0), of(1.0, 0.0)]
    for uniform in (0.0, 0.5, ALMOST_ONE):
        # The second token stands as well; or it is impossible, and the first stands alone.
        assert run(verify_block, Target([1.0, 0.0], [1.0, left], [1.0, 0.0]), drafts, [0, 0], uniform, 0.0, 0.0) == (
            2,
            0,
        )
        assert run(verify_block, Target([1.0, 0.0], [0.0, left], [1.0, 0.0]), drafts, [0, 0], uniform, 0.0, 0.0) == (
            1,
            1,
        )
