"""The verification rules at their edges; that they are exact, tests/runtime/test_enumeration.py says."""

from __future__ import annotations

import itertools
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
        (of(0.5, 0.5), Distribution.certain(0)),
    ):
        assert run(verify, Target(target, [1.0, 0.0]), [draft], [0], math.nextafter(0.5, 0), 0.0) == (1, 0)
        assert run(verify, Target(target, [1.0, 0.0]), [draft], [0], 0.5, 0.0) == (0, 1)


@pytest.mark.parametrize("verify", RULES)
def test_what_the_target_likes_as_well_or_better_always_stands(verify: Verify) -> None:
    for draft in (of(0.5, 0.5), of(0.3, 0.7)):
        assert run(verify, Target([0.5, 0.5], [0.0, 1.0]), [draft], [0], ALMOST_ONE, 0.0) == (1, 1)


@pytest.mark.parametrize("verify", RULES)
def test_the_follower_comes_from_what_the_target_has_left_over(verify: Verify) -> None:
    target = Target([0.1, 0.4, 0.5], [1.0, 0.0, 0.0])
    for uniform, token in ((0.0, 1), (0.399, 1), (0.401, 2), (ALMOST_ONE, 2)):  # 0.2 and 0.3 are left
        assert run(verify, target, [of(0.6, 0.2, 0.2)], [0], 0.9, uniform) == (0, token)


@pytest.mark.parametrize("verify", RULES)
def test_a_residual_that_rounds_to_nothing_means_the_target(verify: Verify) -> None:
    # The draft's 0.5 is one ulp too large, so the uniform next to 1 rejects although no mass is left over.
    draft = of(math.nextafter(0.5, 1), 0.0, math.nextafter(0.5, 1))
    for uniform, token in ((0.0, 0), (0.49, 0), (0.51, 2), (ALMOST_ONE, 2)):
        assert run(verify, Target([0.5, 0.0, 0.5], [1.0, 0.0, 0.0]), [draft], [0], ALMOST_ONE, uniform) == (0, token)


@pytest.mark.parametrize("verify", RULES)
def test_a_draft_without_chance_stands_with_the_targets_probability(verify: Verify) -> None:
    target, draft = [0.2, 0.5, 0.3], Distribution.certain(1)
    for uniform in (0.0, 0.3, math.nextafter(0.5, 0)):
        assert run(verify, Target(target, [0.0, 0.0, 1.0]), [draft], [1], uniform, 0.0) == (1, 2)
    for uniform in (0.5, 0.8, ALMOST_ONE):
        for follows, token in ((0.0, 0), (0.39, 0), (0.41, 2), (ALMOST_ONE, 2)):
            assert run(verify, Target(target, [1.0, 0.0, 0.0]), [draft], [1], uniform, follows) == (0, token)


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


def test_block_verification_accepts_behind_a_token_that_alone_would_not_stand() -> None:
    """The second token makes up for the first: no early exit, and P is a product that is capped at every place."""
    target, drafts = Target([0.25, 0.75], [0.9, 0.1], [0.0, 1.0]), [of(0.5, 0.5), of(0.45, 0.55)]
    # P_1 = 0.5, P_2 = min(1, 0.5 * 2) = 1
    assert run(verify_block, target, drafts, [0, 0], ALMOST_ONE, ALMOST_ONE, 0.0) == (2, 1)
    assert run(verify_tokens, target, drafts, [0, 0], ALMOST_ONE, 0.0, 0.0)[0] == 0
    # P_1 = min(1, 1.5) = 1, P_2 = 0.5
    target, drafts = Target([0.75, 0.25], [0.25, 0.75], [0.0, 1.0]), [of(0.5, 0.5), of(0.5, 0.5)]
    assert run(verify_block, target, drafts, [0, 0], 0.0, math.nextafter(0.5, 0), 0.0)[0] == 2
    assert run(verify_block, target, drafts, [0, 0], 0.0, 0.5, 0.0)[0] == 1


def test_the_follower_of_a_block_comes_from_the_scaled_excess() -> None:
    """One token of two stands with P_1 = 1/2: max(0.5 * target - draft, 0) follows, here token 0 and 1 by 3 to 1."""
    target = Target([0.25, 0.75, 0.0], [0.6, 0.4, 0.0], [1.0, 0.0, 0.0])
    drafts = [of(0.5, 0.5, 0.0), of(0.0, 0.1, 0.9)]  # 0.5 * target - draft = 0.3, 0.1, -0.9
    for uniform, token in ((0.0, 0), (0.749, 0), (0.751, 1), (ALMOST_ONE, 1)):
        assert run(verify_block, target, drafts, [0, 2], 0.0, 0.0, uniform) == (1, token)


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


@pytest.mark.parametrize("seed", range(4))
def test_one_draft_token_is_judged_alike_by_both(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = [*np.linspace(0, 1, 41)[:-1].tolist(), ALMOST_ONE]
    rows, draft = rng.dirichlet(np.full(4, 0.7), size=2), rng.dirichlet(np.full(4, 0.7))
    for token, uniform, follows in itertools.product(range(4), grid, grid):
        block, single = (
            run(verify, Target(*rows), [of(*draft)], [token], uniform, follows)
            for verify in (verify_block, verify_tokens)
        )
        assert block == single
