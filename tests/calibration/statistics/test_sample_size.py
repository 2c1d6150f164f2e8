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


@pytest.mark.parametrize(
    ("requests", "smallest", "largest"),
    [
        (20, None, None),
        (35, None, None),
        (36, "the smallest", None),
        (60, "the 2nd smallest", None),
        (500, "the 37th smallest", "the largest"),
        (1000, "the 82nd smallest", "the 4th largest"),
    ],
)
def test_in_words(requests: int, smallest: str | None, largest: str | None) -> None:
    p10, p99 = what_samples_tell(requests).split(", ")
    assert p10.startswith(f"{requests} requests: p10")
    assert p10.endswith(f" at least {smallest}") if smallest else "smallest" not in p10
    assert p99.startswith("p99")
    assert f" at most {largest} " in p99 if largest else "largest" not in p99
