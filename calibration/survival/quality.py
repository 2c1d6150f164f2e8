"""Quality of the predicted chances of draft tokens: expected calibration error and AUC."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..statistics.results import EstimateQuality

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]

BINS = 15


def judge(chances: Floats, accepted: Bools) -> EstimateQuality:
    """Judge `chances` `[n]`, each from a fit that has not seen its request."""
    return EstimateQuality(calibration_error(chances, accepted), area_under_curve(chances, accepted))


def equal_count_bins(values: Floats, count: int) -> Integers:
    """The bin of each value, numbered from 0 without gaps: at most `count` bins, equally full except for ties.

    Equal values share a bin, so the order of the values does not matter.
    """
    edges = np.quantile(values, np.arange(1, count) / count)
    numbers: Integers = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]
    return numbers


def calibration_error(chances: Floats, accepted: Bools) -> float:
    """Expected calibration error (Naeini et al. 2015): the mean distance of `BINS` bins' chances from what was
    accepted, weighted by number.

    Equal counts rather than equal widths: chances crowd near 1, and nearly empty bins would only add noise. Randomness
    alone gives about 0.8 * sqrt(15 * p * (1 - p) / n) for n tokens: 1 % takes several thousand.
    """
    bins = equal_count_bins(chances, BINS)
    return float(np.abs(np.bincount(bins, chances) - np.bincount(bins, accepted)).sum() / len(chances))


def area_under_curve(chances: Floats, accepted: Bools) -> float:
    """Probability that an accepted token has a larger chance than a rejected one, ties counting half; 0.5 if all were
    accepted or all rejected.
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(accepted, chances)) if 0 < accepted.sum() < len(accepted) else 0.5
