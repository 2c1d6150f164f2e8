"""Calibration curves: from a signal's logit to the chance that a draft token is accepted, one curve per position.

A curve is fitted by Platt scaling or by isotonic regression, whichever predicts held-out requests better. Positions
that few rounds reach are pulled towards the curve of all positions together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...runtime.policy.survival import Curve
from ..measuring.judged_tokens import JudgedTokens
from .quality import Bools, Floats, Integers, equal_count_bins, scikit_learn

# Points of a curve, at most.
POINTS = 33
# Smallest distance of a curve's chances from 0 and 1, however few tokens it was fitted on.
MIN_CHANCE = 0.001
# All positions together weigh as much as this many tokens of a single position.
PRIOR_TOKENS = 50
# A curve with a smaller slope per unit of the logit is made flat.
MIN_SLOPE = 0.01


@dataclass(frozen=True)
class LogitBins:
    """Tokens binned by logit: each bin's mean logit, number of tokens, and number of accepted ones.

    All `[bins]`. Counts need not be whole numbers.
    """

    logit: Floats
    count: Floats
    accepted: Floats

    @classmethod
    def of(cls, logit: Floats, accepted: Bools, bins: int = 200) -> LogitBins:
        if not len(logit):
            return cls(np.empty(0), np.empty(0), np.empty(0))
        numbers = equal_count_bins(logit, bins)
        count = _sums(numbers, np.ones(len(logit)))
        return cls(_sums(numbers, logit) / count, count, _sums(numbers, accepted.astype(np.float64)))

    def prior(self, curve: Curve) -> LogitBins:
        """The same logits with `PRIOR_TOKENS` tokens in all, accepted at the rates of `curve`."""
        count = self.count * (PRIOR_TOKENS / self.count.sum())
        return LogitBins(self.logit, count, count * _apply(curve, self.logit))

    def __add__(self, other: LogitBins) -> LogitBins:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return LogitBins(*(np.concatenate(pair) for pair in both))

    def coarse(self, bins: int) -> LogitBins:
        """Merged into at most `bins` bins with about equal counts."""
        order = np.argsort(self.logit, kind="stable")
        count = self.count[order]
        numbers = ((np.cumsum(count) - count / 2) * (bins / count.sum())).astype(np.int64)
        numbers = np.unique(numbers, return_inverse=True)[1]
        total = _sums(numbers, count)
        return LogitBins(_sums(numbers, count * self.logit[order]) / total, total, _sums(numbers, self.accepted[order]))


Method = Callable[[LogitBins], Curve]


def fit_curves(logits: Floats, tokens: JudgedTokens, fold: Integers) -> tuple[Curve, ...]:
    """Curves by position, by the method that, fitted on half of the folds, predicts the other half better.

    Platt scaling where there is only one fold.
    """
    if tokens.accepted.all() or not tokens.accepted.any():
        return (_level(LogitBins.of(logits, tokens.accepted)),)
    half = np.unique(fold, return_inverse=True)[1] % 2
    if not half.any():
        return _by_position(_platt, logits, tokens)
    methods = (_platt, _isotonic)
    losses = [log_loss(held_out_chances(logits, tokens, half, method), tokens.accepted).sum() for method in methods]
    return _by_position(methods[int(np.argmin(losses))], logits, tokens)


def held_out_chances(logits: Floats, tokens: JudgedTokens, fold: Integers, method: Method | None = None) -> Floats:
    """Each token's chance `[n]` by curves fitted on the other folds, with `method` or with the better of the two."""
    chances = np.empty(len(tokens))
    for left_out in np.unique(fold):
        out, rest = fold == left_out, fold != left_out
        curves = (
            _by_position(method, logits[rest], tokens.of(rest))
            if method
            else fit_curves(logits[rest], tokens.of(rest), fold[rest])
        )
        chances[out] = curve_chances(curves, logits[out], tokens.index[out])
    return chances


def curve_chances(curves: tuple[Curve, ...], logits: Floats, index: Integers) -> Floats:
    """`Survival.chance` for arrays `[n]`."""
    chances = np.empty(len(logits))
    for position, curve in enumerate(curves):
        here = index == position if position + 1 < len(curves) else index >= position
        chances[here] = _apply(curve, logits[here])
    return chances


def log_loss(chances: Floats, accepted: Bools) -> Floats:
    """The log loss of each token `[n]`. Chances are strictly between 0 and 1."""
    return -np.log(np.where(accepted, chances, 1 - chances))


def _by_position(method: Method, logits: Floats, tokens: JudgedTokens) -> tuple[Curve, ...]:
    pooled = LogitBins.of(logits, tokens.accepted)
    prior = pooled.prior(method(pooled))
    positions = [tokens.index == position for position in range(int(tokens.index.max()) + 1)]
    return tuple(method(LogitBins.of(logits[here], tokens.accepted[here]) + prior) for here in positions)


def _level(bins: LogitBins) -> Curve:
    chance = (bins.accepted.sum() + 0.5) / (bins.count.sum() + 1)
    return Curve((0.0,), (float(np.clip(chance, MIN_CHANCE, 1 - MIN_CHANCE)),))


def _platt(bins: LogitBins) -> Curve:
    """sigmoid(slope * logit + bias), with the smoothed targets of Platt (1999), which keep the slope finite."""
    accepted, rejected = bins.accepted, bins.count - bins.accepted
    if accepted.sum() < 1e-9 or rejected.sum() < 1e-9:
        return _level(bins)
    high, low = (accepted.sum() + 1) / (accepted.sum() + 2), 1 / (rejected.sum() + 2)
    ones = accepted * high + rejected * low
    labels, weights = np.repeat([1, 0], len(accepted)), np.concatenate([ones, bins.count - ones])
    regression = scikit_learn("linear_model").LogisticRegression(C=1e6, max_iter=1000)
    regression.fit(np.tile(bins.logit, 2)[:, None], labels, sample_weight=weights)
    slope, bias = float(regression.coef_[0, 0]), float(regression.intercept_[0])
    if slope < MIN_SLOPE:
        return _level(bins)
    limit = np.log(1 / MIN_CHANCE - 1)
    wanted = np.linspace(-limit, limit, POINTS)
    return _curve((wanted - bias) / slope, 1 / (1 + np.exp(-wanted)))


def _isotonic(bins: LogitBins) -> Curve:
    """Isotonic regression: the nondecreasing values closest to the observed rates, joined by straight lines."""
    coarse = bins.coarse(POINTS)
    rates = (coarse.accepted + 0.5) / (coarse.count + 1)
    regression = scikit_learn("isotonic").IsotonicRegression().fit(coarse.logit, rates, sample_weight=coarse.count)
    return _curve(regression.X_thresholds_, regression.y_thresholds_)


def _curve(logits: Floats, chances: Floats) -> Curve:
    clipped = np.clip(chances, MIN_CHANCE, 1 - MIN_CHANCE)
    return Curve(tuple(map(float, logits)), tuple(map(float, clipped)))


def _apply(curve: Curve, logits: Floats) -> Floats:
    """`Curve.__call__` for an array."""
    return np.interp(logits, curve.logits, curve.chances)


def _sums(numbers: Integers, values: Floats) -> Floats:
    """The sum of the values in each bin."""
    return np.bincount(numbers, values).astype(np.float64)
