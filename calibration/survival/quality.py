"""Quality of the predicted chances of draft tokens: expected calibration error, AUC, reliability."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import MissingPackageError
from ..measuring.judged_tokens import JudgedTokens
from ..statistics.results import SignalQuality

Floats = NDArray[np.float64]
Reliability = tuple[tuple[float, float, int], ...]

BINS = 15
# Smallest bin in which a position's rounds are reweighted.
ROUNDS_A_BIN = 40


def scikit_learn(module: str) -> Any:
    """`sklearn.{module}`. Raises `MissingPackageError`."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise MissingPackageError("scikit-learn", "calibrate") from None


def judge(signal: str, tokens: JudgedTokens, chances: Floats) -> SignalQuality:
    """Judge `chances` `[n] float64`, each from a fit that has not seen its request. Raises `MissingPackageError`."""
    bins = reliability(chances, tokens.accepted)
    products, rounds = running_products(tokens, chances)
    auc = area_under_curve(chances, tokens.accepted)
    return SignalQuality(
        signal, calibration_error(bins), calibration_error(reliability(products, tokens.accepted, rounds)), auc, bins
    )


def equal_count_bins(values: Floats, count: int) -> NDArray[np.int64]:
    """The bin of each value, numbered from 0 without gaps: at most `count` bins, equally full except for ties.

    Equal values share a bin, so the order of the values does not matter.
    """
    edges = np.quantile(values, np.arange(1, count) / count)
    numbers: NDArray[np.int64] = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]
    return numbers


def reliability(predicted: Floats, accepted: NDArray[np.bool_], rounds: Floats | None = None) -> Reliability:
    """(mean predicted, observed share, number) of each of `BINS` equal-count bins, by rising prediction.

    Equal counts rather than equal widths: chances crowd near 1, and nearly empty bins would only add noise. rounds
    `[n]`: how many rounds each prediction stands for, of which at most one succeeded; 1 by default. () for no token.
    """
    if not len(predicted):
        return ()
    weight = np.ones(len(predicted)) if rounds is None else rounds
    bins = equal_count_bins(predicted, BINS)
    total = np.bincount(bins, weight)
    means, shares = np.bincount(bins, weight * predicted) / total, np.bincount(bins, accepted) / total
    return tuple((float(mean), float(share), round(n)) for mean, share, n in zip(means, shares, total, strict=True))


def calibration_error(bins: Reliability) -> float:
    """Expected calibration error (Naeini et al. 2015): the bins' mean distance from observation, weighted by number.

    0 for no bin. Chance alone gives about 0.8 * sqrt(15 * p * (1 - p) / n) for n tokens: 1 % takes several thousand.
    """
    total = sum(n for _, _, n in bins)
    return sum(n * abs(predicted - observed) for predicted, observed, n in bins) / total if total else 0.0


def area_under_curve(chances: Floats, accepted: NDArray[np.bool_]) -> float:
    """Probability that an accepted token has a larger chance than a rejected one, ties counting half.

    0.5 if all were accepted or all rejected. Raises `MissingPackageError`.
    """
    metrics = scikit_learn("metrics")
    return float(metrics.roc_auc_score(accepted, chances)) if 0 < accepted.sum() < len(accepted) else 0.5


def running_products(tokens: JudgedTokens, chances: Floats) -> tuple[Floats, Floats]:
    """(product of the chances along the draft up to each token `[n]`, number of rounds that token stands for `[n]`).

    The product makes a claim about all rounds, but after a rejection the later tokens of a round are unknown. So the
    weight of a rejected round is passed on, in equal parts, to the rounds that continued from similar products
    (redistribution to the right, as in the Kaplan-Meier estimator; here within equal-count bins of the product). Rounds
    that ended without a rejection say nothing about later positions, and their weight is not passed on; nor is that of
    bins in which no round continued.
    """
    draft = np.unique(tokens.round, return_inverse=True)[1]
    products, rounds = np.empty(len(tokens)), np.empty(len(tokens))
    reached, weight = np.ones(len(tokens)), np.ones(len(tokens))  # by draft
    for index in range(int(tokens.index.max(initial=-1)) + 1):
        here = np.flatnonzero(tokens.index == index)
        drafts = draft[here]
        products[here] = reached[drafts] = reached[drafts] * chances[here]
        rounds[here] = weight[drafts]
        goes_on = np.isin(drafts, draft[tokens.index == index + 1])
        if not goes_on.any():
            continue
        bins = equal_count_bins(products[here], min(BINS, 1 + len(here) // ROUNDS_A_BIN))
        known, alive = (np.bincount(bins, rounds[here] * of) for of in (goes_on | ~tokens.accepted[here], goes_on))
        weight[drafts] *= np.divide(known, alive, out=np.ones_like(known), where=alive > 0)[bins]
    return products, rounds
