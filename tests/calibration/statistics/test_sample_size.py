from __future__ import annotations

import numpy as np
import pytest
from specexport.calibration.statistics.sample_size import quantile_ranks, what_samples_tell


@pytest.mark.parametrize(
    ("requests", "share", "ranks"),
    [
        (500, 0.99, (490, 500)),  # the upper end is the largest of all
        (367, 0.99, (359, None)),
        (368, 0.99, (360, 368)),  # from here on 1 - 0.99^n >= 0.975
        (35, 0.1, (None, 8)),
        (36, 0.1, (1, 8)),  # from here on 1 - 0.9^n >= 0.975
        (1, 0.5, (None, None)),
        (0, 0.5, (None, None)),
    ],
)
def test_ranks_around_a_quantile(requests: int, share: float, ranks: tuple[int | None, int | None]) -> None:
    assert quantile_ranks(requests, share) == ranks


def test_the_ranks_cover_the_quantile_as_often_as_they_say() -> None:
    low, high = quantile_ranks(60, 0.1)
    assert low is not None
    assert high is not None
    drawn = np.sort(np.random.default_rng(0).random((20_000, 60)), axis=1)
    missed_low, missed_high = (drawn[:, low - 1] > 0.1).mean(), (drawn[:, high - 1] < 0.1).mean()
    assert missed_low <= 0.027
    assert missed_high <= 0.027
    # One rank narrower would miss too often.
    assert (drawn[:, low] > 0.1).mean() > 0.025
    assert (drawn[:, high - 2] < 0.1).mean() > 0.025


def test_large_numbers_do_not_overflow() -> None:
    low, high = quantile_ranks(20_000, 0.5)
    assert low is not None
    assert high is not None
    assert 9_850 < low < 10_000 < high < 10_150


UNBOUNDED = "none is slow enough to bound the p99 of the latency (95 %)"


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        (1, "1 request tells little, whatever comes out"),
        (19, "19 requests tell little, whatever comes out"),
        (20, f"20 requests tell nothing for sure about the p10 of the speedup; {UNBOUNDED}"),
        (36, f"36 requests tell that the p10 of the speedup is at least the smallest; {UNBOUNDED}"),
        (60, f"60 requests tell that the p10 of the speedup is at least the 2nd smallest; {UNBOUNDED}"),
    ],
)
def test_in_words(requests: int, words: str) -> None:
    assert what_samples_tell(requests) == words


@pytest.mark.parametrize(
    ("requests", "smallest", "largest"),
    [(500, "37th smallest", "the largest"), (1000, "82nd smallest", "the 4th largest")],
)
def test_in_words_where_there_are_many(requests: int, smallest: str, largest: str) -> None:
    assert f"at least the {smallest}; the p99 of the latency is at most {largest} (95 %)" in what_samples_tell(requests)
