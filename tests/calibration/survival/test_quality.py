"""Calibration error, area under the curve and reliability, against values known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.calibration.measuring.judged_tokens import JudgedTokens
from specexport.calibration.survival.quality import (
    BINS,
    area_under_curve,
    calibration_error,
    equal_count_bins,
    judge,
    reliability,
    running_products,
)


def judged(chances: np.ndarray, draws: np.ndarray) -> tuple[JudgedTokens, np.ndarray]:
    """Rounds `[rounds, k]` of true `chances`, cut after the first rejection, and the chances of what is left."""
    accepted = draws < chances
    reached = np.cumprod(np.column_stack([np.ones(len(accepted), bool), accepted[:, :-1]]), axis=1).astype(bool)
    rounds, index = np.nonzero(reached)
    probability = np.log(chances / (1 - chances))[reached].astype(np.float32)
    tokens = JudgedTokens(
        rounds // 10, rounds, index, probability, np.zeros((len(rounds), 0), np.float32), accepted[reached]
    )
    return tokens, chances[reached]


def tokens_of(rounds: list[list[bool]]) -> JudgedTokens:
    index = np.array([i for one in rounds for i in range(len(one))])
    number = np.array([r for r, one in enumerate(rounds) for _ in one])
    accepted = np.array([a for one in rounds for a in one])
    return JudgedTokens(
        number, number, index, np.zeros(len(index), np.float32), np.zeros((len(index), 0), np.float32), accepted
    )


def test_bins_hold_equal_counts() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1500) / 1500) ** 8
    bins = equal_count_bins(values, BINS)
    assert set(np.bincount(bins)) == {100}
    assert values[bins == 3].max() < values[bins == 4].min()


def test_reliability_says_what_was_predicted_and_what_happened() -> None:
    predicted, accepted = (
        np.array([0.8] * 10 + [0.1] * 10),
        np.array([True] * 6 + [False] * 4 + [True] * 2 + [False] * 8),
    )
    bins = reliability(predicted, accepted)
    assert bins == ((pytest.approx(0.1), pytest.approx(0.2), 10), (pytest.approx(0.8), pytest.approx(0.6), 10))
    assert calibration_error(bins) == pytest.approx(0.15)
    assert all(type(value) is kind for one in bins for value, kind in zip(one, (float, float, int), strict=True))


def test_true_chances_have_no_error_and_shifted_ones_have_the_shift() -> None:
    random = np.random.default_rng(1)
    chances = random.uniform(0.2, 0.8, 40_000)
    accepted = random.random(40_000) < chances
    assert calibration_error(reliability(chances, accepted)) < 0.012
    assert calibration_error(reliability(chances + 0.1, accepted)) == pytest.approx(0.1, abs=0.012)


def test_the_area_under_the_curve_counts_ordered_pairs() -> None:
    chances, accepted = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([False, False, True, True, True])
    assert area_under_curve(chances, accepted) == pytest.approx((1 + 0 + 1 + 1 + 1 + 0.5) / 6)
    assert area_under_curve(chances, np.ones(5, bool)) == area_under_curve(chances, np.zeros(5, bool)) == 0.5


def test_products_run_along_each_draft() -> None:
    tokens = tokens_of([[True, True, False], [True], [False]])
    products, rounds = running_products(tokens, np.array([0.9, 0.5, 0.4, 0.7, 0.2]))
    assert products == pytest.approx([0.9, 0.45, 0.18, 0.7, 0.2])
    assert rounds[tokens.index == 0].tolist() == [1.0, 1.0, 1.0]


def test_rejected_rounds_are_handed_on_and_unfinished_ones_are_not() -> None:
    """Of 8 rounds 3 are rejected at once and 1 ends without a rejection: 4 that go on stand for 7."""
    tokens = tokens_of([[True, True]] * 2 + [[True, False]] * 2 + [[False]] * 3 + [[True]])
    _, rounds = running_products(tokens, np.full(len(tokens), 0.5))
    assert rounds[tokens.index == 1] == pytest.approx([7 / 4] * 4)


def survival_error_of_all(chances: np.ndarray, draws: np.ndarray, claimed: np.ndarray) -> float:
    """The error of the products with nothing cut off: what is true, and what a loop cannot see."""
    survived = np.cumprod(draws < chances, axis=1).astype(bool)
    return calibration_error(reliability(np.cumprod(claimed, axis=1).ravel(), survived.ravel()))


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.1])
def test_the_survival_error_is_that_of_all_rounds(shift: float) -> None:
    random = np.random.default_rng(2)
    chances, draws = random.uniform(0.4, 0.9, (15_000, 4)), random.random((15_000, 4))
    tokens, true = judged(chances, draws)
    claimed = chances + shift
    found = judge("x", tokens, true + shift).survival_error
    assert found == pytest.approx(survival_error_of_all(chances, draws, claimed), abs=0.01)
    assert found < 0.012 if shift == 0 else found > 0.08


def test_an_error_of_the_first_position_is_carried_along() -> None:
    """Only position 0 claims too much, yet the survival of every position is claimed too large."""
    random = np.random.default_rng(3)
    chances, draws = np.full((15_000, 4), 0.7) + random.uniform(-0.05, 0.05, (15_000, 4)), random.random((15_000, 4))
    tokens, true = judged(chances, draws)
    claimed = np.where(tokens.index == 0, true + 0.2, true)
    wrong = chances.copy()
    wrong[:, 0] += 0.2
    assert judge("x", tokens, claimed).survival_error == pytest.approx(
        survival_error_of_all(chances, draws, wrong), abs=0.012
    )


def test_a_judgement_holds_every_measure_by_its_name() -> None:
    random = np.random.default_rng(4)
    tokens, true = judged(random.uniform(0.1, 0.9, (500, 3)), random.random((500, 3)))
    found = judge("head", tokens, true)
    assert found.signal == "head"
    assert found.reliability == reliability(true, tokens.accepted)
    assert found.error == calibration_error(found.reliability)
    assert found.auc == area_under_curve(true, tokens.accepted)
    assert sum(n for _, _, n in found.reliability) == len(tokens)
    assert found.survival_error != found.error
