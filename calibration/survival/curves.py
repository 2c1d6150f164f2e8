"""Calibration curves: from a draft's confidence to the chance that a token is accepted, one curve per position.

A curve is fitted by isotonic regression. Positions that few rounds reach are pulled towards the curve of all positions
together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...runtime.policy.survival import Curve
from ..measuring.record import JudgedTokens
from .quality import Bools, Floats, Integers, equal_count_bins

# Points of a curve, at most, and tokens for each of them, at least.
POINTS = 33
TOKENS_A_POINT = 40
# Smallest distance of a curve's chances from 0 and 1, however few tokens it was fitted on.
MIN_CHANCE = 0.001
# All positions together weigh as much as this many tokens of a single position.
PRIOR_TOKENS = 50


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


def fit_curves(tokens: JudgedTokens) -> tuple[Curve, ...]:
    """Curves by position; one flat curve where all tokens were accepted, or none."""
    logits = tokens.confidence
    pooled = LogitBins.of(logits, tokens.accepted)
    if tokens.accepted.all() or not tokens.accepted.any():
        chance = (pooled.accepted.sum() + 0.5) / (pooled.count.sum() + 1)
        return (_curve(np.zeros(1), np.array([chance])),)
    prior = pooled.prior(_isotonic(pooled))
    positions = [tokens.index == position for position in range(int(tokens.index.max()) + 1)]
    return tuple(_isotonic(LogitBins.of(logits[here], tokens.accepted[here]) + prior) for here in positions)


def cross_val_probs(tokens: JudgedTokens, fold: Integers) -> Floats:
    """Each token's chance `[n]` by curves fitted on the other folds."""
    chances = np.empty(len(tokens))
    for left_out in np.unique(fold):
        out, rest = fold == left_out, fold != left_out
        chances[out] = predict_curves(fit_curves(tokens.of(rest)), tokens.of(out))
    return chances


def predict_curves(curves: tuple[Curve, ...], tokens: JudgedTokens) -> Floats:
    """`Survival.chance` of each token `[n]`."""
    chances, position = np.empty(len(tokens)), np.minimum(tokens.index, len(curves) - 1)
    for number, curve in enumerate(curves):
        here = position == number
        chances[here] = _apply(curve, tokens.confidence[here])
    return chances


def _isotonic(bins: LogitBins) -> Curve:
    """Isotonic regression: the nondecreasing values closest to the observed rates, joined by straight lines."""
    from sklearn.isotonic import IsotonicRegression

    coarse = bins.coarse(max(2, min(POINTS, int(bins.count.sum() / TOKENS_A_POINT))))
    rates = (coarse.accepted + 0.5) / (coarse.count + 1)
    regression = IsotonicRegression().fit(coarse.logit, rates, sample_weight=coarse.count)
    return _curve(regression.X_thresholds_, regression.y_thresholds_)


def _curve(logits: Floats, chances: Floats) -> Curve:
    clipped = np.clip(chances, MIN_CHANCE, 1 - MIN_CHANCE)
    return Curve(tuple(map(float, logits)), tuple(map(float, clipped)))


def _apply(curve: Curve, logits: Floats) -> Floats:
    return np.interp(logits, curve.logits, curve.chances)


def _sums(numbers: Integers, values: Floats) -> Floats:
    return np.bincount(numbers, values).astype(np.float64)
