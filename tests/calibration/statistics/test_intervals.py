"""Intervals by request: how often they hold, what they do with few requests, and that they are repeatable."""

from __future__ import annotations

import math

import numpy as np
import pytest
from specexport.calibration.statistics.intervals import (
    FEW,
    STUDENT,
    UNBOUNDED,
    _student_quantile,
    difference_interval,
    quantile_bound,
    quantiles,
    ratio_interval,
)
from specexport.errors import ParameterError
from support.refusals import refused

SPREAD = 0.35


def requests(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Plain and speculative times: lengths differ between requests, and so does what speculation gives each."""
    length = rng.lognormal(sigma=0.6, size=count)
    return length * rng.lognormal(sigma=SPREAD, size=count), length


TRUE_RATIO = math.exp(SPREAD**2 / 2)


@pytest.mark.parametrize("count", [2, 4, 8, FEW, 20, 100])
def test_intervals_hold_as_often_as_they_say(count: int) -> None:
    rng = np.random.default_rng(count)
    trials = 400
    found = [ratio_interval(*requests(rng, count), seed=trial, draws=600) for trial in range(trials)]
    assert 0.90 <= sum(entry.low <= TRUE_RATIO <= entry.high for entry in found) / trials <= 0.99
    assert all(entry.low <= entry.value <= entry.high for entry in found)


def test_the_value_is_the_ratio_of_the_sums() -> None:
    assert ratio_interval([1, 9], [1, 3]).value == 2.5  # the mean of the ratios is 2


@pytest.mark.parametrize("count", [3, FEW - 1, FEW, 50])
def test_pairs_stay_together(count: int) -> None:
    """Of requests that differ in length alone nothing is unknown; drawn apart, times would differ widely."""
    length = np.random.default_rng(0).lognormal(sigma=1.0, size=count)
    found = ratio_interval(length * 2, length)
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)


def test_more_requests_tell_more() -> None:
    widths = []
    for count in (2, 3, 5, FEW - 1, 40, 1000):
        parts = [ratio_interval(*requests(np.random.default_rng(seed), count), draws=400) for seed in range(20)]
        widths.append(float(np.median([entry.high / entry.low for entry in parts])))
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("count", [FEW, 15])
def test_few_requests_widen_the_percentiles(count: int) -> None:
    above, below = requests(np.random.default_rng(3), count)
    found = ratio_interval(above, below, draws=4000)
    drawn = np.random.default_rng(1).integers(0, count, (4000, count))
    low, high = np.percentile(above[drawn].sum(1) / below[drawn].sum(1), [2.5, 97.5])
    assert found.low < low - 0.015 * (high - low)
    assert found.high > high + 0.015 * (high - low)


def test_requests_that_differ_beyond_all_measure() -> None:
    found = ratio_interval([1e-300, 1e300], [1e300, 1e-300])
    assert found.low <= found.value <= found.high
    assert math.isfinite(found.high)


def test_the_seed_makes_it_repeatable() -> None:
    above, below = requests(np.random.default_rng(5), 40)
    assert ratio_interval(above, below, seed=1) == ratio_interval(above, below, seed=1)
    assert ratio_interval(above, below, seed=1) != ratio_interval(above, below, seed=2)


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ([1, 2], [1, 0]),
        ([1, 2], [1, -1]),
        ([1, -2], [1, 1]),
        ([1, math.nan], [1, 1]),
        ([1, 2], [1, math.inf]),
    ],
)
def test_ratios_of_nothing_are_refused(above: list[float], below: list[float]) -> None:
    with refused(ParameterError, "numerators"):
        ratio_interval(above, below)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (8, 2.306), (9, 2.262), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_students_quantile_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert _student_quantile(freedom) == pytest.approx(expected, abs=6e-4)


def test_quantiles() -> None:
    found = quantiles(range(101))
    assert (found.p10, found.p50, found.p90, found.p99) == (10, 50, 90, 99)
    assert quantiles([2.0]).p10 == quantiles([2.0]).p99 == 2.0


def test_differences_hold_their_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        sizes = rng.integers(20, 100, 12)
        found = difference_interval((0.1 * sizes + 3 * rng.standard_normal(12)).tolist(), sizes.tolist())
        held += found.low <= 0.1 <= found.high
    assert 0.91 <= held / 400 <= 0.99


def test_differences_of_one_request_and_of_none() -> None:
    one = difference_interval([2.0], [4.0])
    assert (one.value, one.low, one.high) == (0.5, -UNBOUNDED, UNBOUNDED)
    assert difference_interval([1.0, 3.0], [1.0, 1.0]).high == pytest.approx(2.0 + STUDENT[0])  # a deviation of 1


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [
        (500, 0.99, 500),  # the upper end is the largest of all
        (367, 0.99, None),
        (368, 0.99, 368),  # from here on 1 - 0.99^n >= 0.975
        (36, 0.1, 8),
        (1, 0.5, None),
        (0, 0.5, None),
    ],
)
def test_the_upper_bound_of_a_quantile(count: int, share: float, rank: int | None) -> None:
    assert quantile_bound(range(count, 0, -1), share) == (math.inf if rank is None else rank)


def test_the_bound_is_above_the_quantile_as_often_as_it_says() -> None:
    rank = int(quantile_bound(range(1, 61), 0.1))
    drawn = np.sort(np.random.default_rng(0).random((20_000, 60)), axis=1)
    assert (drawn[:, rank - 1] < 0.1).mean() <= 0.027
    assert (drawn[:, rank - 2] < 0.1).mean() > 0.025  # one rank lower would miss too often
