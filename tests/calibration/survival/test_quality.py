"""Calibration error and area under the curve, against values known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.calibration.survival.quality import BINS, area_under_curve, calibration_error, equal_count_bins


def test_bins_hold_equal_counts() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1500) / 1500) ** 8
    bins = equal_count_bins(values, BINS)
    assert set(np.bincount(bins)) == {100}
    assert values[bins == 3].max() < values[bins == 4].min()


def test_the_error_is_the_distance_of_what_was_predicted_from_what_happened() -> None:
    chances = np.array([0.8] * 10 + [0.1] * 10)
    accepted = np.array([True] * 6 + [False] * 4 + [True] * 2 + [False] * 8)
    assert calibration_error(chances, accepted) == pytest.approx(0.15)


def test_true_chances_have_no_error_and_shifted_ones_have_the_shift() -> None:
    random = np.random.default_rng(1)
    chances = random.uniform(0.2, 0.8, 40_000)
    accepted = random.random(40_000) < chances
    assert calibration_error(chances, accepted) < 0.012
    assert calibration_error(chances + 0.1, accepted) == pytest.approx(0.1, abs=0.012)


def test_the_area_under_the_curve_counts_ordered_pairs() -> None:
    chances, accepted = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([False, False, True, True, True])
    assert area_under_curve(chances, accepted) == pytest.approx((1 + 0 + 1 + 1 + 1 + 0.5) / 6)
    assert area_under_curve(chances, np.ones(5, bool)) == area_under_curve(chances, np.zeros(5, bool)) == 0.5
