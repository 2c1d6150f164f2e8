"""The chance of a draft token to survive, learnt from tokens that were judged, by two signals; the better one is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from ...errors import ParameterError
from ...runtime.policy.survival import SURVIVAL_VERSION, Curve, Signal, Survival
from ..measuring.judged_tokens import JudgedTokens
from ..statistics.results import SignalQuality
from .quality import Floats, equal_count_bins, judge, scikit_learn

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

FOLDS = 5
POINTS = 33
# No curve says more than this of a token, however few it was fitted on.
LEAST_CHANCE = 0.001
# What all positions together say counts as much as so many tokens of a position.
PRIOR_TOKENS = 50
# A curve that rises by less a unit of the logit is called level.
LEAST_SLOPE = 0.01
# Inverse L2 strengths of the head, on standardised features.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
# Of the head's fits; more tokens change its weights little.
MOST_ROWS = 30_000


def fit_survival(tokens: JudgedTokens, bundle: str, seed: int = 0) -> tuple[Survival, tuple[SignalQuality, ...]]:
    """The survival of `bundle` (`bundle_identity`), fitted on all requests, and how good each signal is that was tried.

    Signals: `probability`, the logit of the draft's largest probability; `head`, where there are features and 3
    requests: a logistic regression on them (DSpark, arXiv 2607.05147), its L2 strength by cross-validation; `both`, the
    same with the probability's logit as one more feature. All are then calibrated
    position after position, each on the tokens that got so far, so that the product of the chances is the survival.

    Everything is judged on requests that neither weights, nor strength, nor curves were fitted on: `FOLDS` groups of
    whole requests, drawn with `seed`. With one request there is nothing to judge on and no quality. The signal with the
    smallest log
    loss is kept: it is the proper score of a chance, so it sees both calibration and sharpness, where calibration error
    alone would be best for one level curve. A richer one must gain two standard errors
    on the simpler: `both` on `head`, that on `probability`, which needs no features.
    Rounds with a NaN are left out. One thread: these are many small problems.
    Raises `ParameterError` where no token is left, `MissingPackageError`.
    """
    tokens = _finite(tokens)
    if not len(tokens):
        raise ParameterError(
            "no draft token was judged, so nothing can be said of survival; give prompts that are continued by drafts"
        )
    scikit_learn("linear_model")
    with import_module("threadpoolctl").threadpool_limits(1):  # comes with scikit-learn
        return _fit(tokens, bundle, seed)


def _fit(tokens: JudgedTokens, bundle: str, seed: int) -> tuple[Survival, tuple[SignalQuality, ...]]:
    fold = _folds(tokens.request, seed)
    logits, bare = tokens.probability.astype(np.float64), _bare(tokens)
    probability = Survival(SURVIVAL_VERSION, bundle, "probability", _fit_curves(logits, bare, fold), ())
    if fold.max() == 0:
        return probability, ()
    chances = _held_out(logits, bare, fold)
    quality = judge("probability", tokens, chances)
    if not tokens.features.shape[1] or fold.max() < 2:
        return probability, (quality,)
    best, least, qualities = probability, _log_loss(chances, tokens.accepted), [quality]
    heads: tuple[tuple[Signal, JudgedTokens], ...] = (("head", tokens), ("both", _with_probability(tokens)))
    for signal, seen in heads:
        head, head_chances = _fit_head(signal, seen, fold, bundle, seed)
        qualities.append(judge(signal, tokens, head_chances))
        losses = _log_loss(head_chances, tokens.accepted)
        if (least - losses).sum() > 2 * _standard_error(least - losses, tokens.request):
            best, least = head, losses
    return best, tuple(qualities)


def _with_probability(tokens: JudgedTokens) -> JudgedTokens:
    """Its logit as one more feature, the last."""
    return replace(tokens, features=np.concatenate([tokens.features, tokens.probability[:, None]], axis=1))


def _bare(tokens: JudgedTokens) -> JudgedTokens:
    """Without features, which curves do not read and which would be copied with every choice of tokens."""
    return replace(tokens, features=tokens.features[:, :0])


def _finite(tokens: JudgedTokens) -> JudgedTokens:
    broken = ~(np.isfinite(tokens.probability) & np.isfinite(tokens.features).all(axis=1))
    return tokens.of(~np.isin(tokens.round, tokens.round[broken]))


def _folds(request: Integers, seed: int) -> Integers:
    """The group of each token, from 0: whole requests, since tokens of one are alike."""
    requests, numbers = np.unique(request, return_inverse=True)
    groups: Integers = np.random.default_rng(seed).permutation(len(requests)) % FOLDS
    return groups[numbers]


def _log_loss(chances: Floats, accepted: Bools) -> Floats:
    """By token. Chances are strictly between 0 and 1."""
    return -np.log(np.where(accepted, chances, 1 - chances))


def _standard_error(values: Floats, request: Integers) -> float:
    """Of the sum of `values`, when requests are drawn and not tokens."""
    numbers = np.unique(request, return_inverse=True)[1]
    sums = np.bincount(numbers, values) - np.bincount(numbers) * values.mean()
    return float(np.sqrt((sums**2).sum()))


# --- From a logit to a chance ---


@dataclass(frozen=True)
class _Table:
    """Tokens in bins of like logits: mean logit, tokens and accepted ones of each bin. Counts need not be whole."""

    logit: Floats
    count: Floats
    hits: Floats

    @classmethod
    def of(cls, logit: Floats, accepted: Bools, bins: int = 200) -> _Table:
        if not len(logit):
            return cls(np.empty(0), np.empty(0), np.empty(0))
        numbers = equal_count_bins(logit, bins)
        count = _sums(numbers, np.ones(len(logit)))
        return cls(_sums(numbers, logit) / count, count, _sums(numbers, accepted.astype(np.float64)))

    def prior(self, curve: Curve) -> _Table:
        """The same logits, `PRIOR_TOKENS` in all, accepted as `curve` says."""
        count = self.count * (PRIOR_TOKENS / self.count.sum())
        return _Table(self.logit, count, count * _apply(curve, self.logit))

    def __add__(self, other: _Table) -> _Table:
        return _Table(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)))

    def coarse(self, bins: int) -> _Table:
        """In `bins` bins of about as many tokens."""
        order = np.argsort(self.logit, kind="stable")
        count = self.count[order]
        numbers = ((np.cumsum(count) - count / 2) * (bins / count.sum())).astype(np.int64)
        numbers = np.unique(numbers, return_inverse=True)[1]
        total = _sums(numbers, count)
        return _Table(_sums(numbers, count * self.logit[order]) / total, total, _sums(numbers, self.hits[order]))


def _sums(numbers: Integers, values: Floats) -> Floats:
    """Of the values of each number."""
    return np.bincount(numbers, values).astype(np.float64)


Method = Callable[[_Table], Curve]


def _level(table: _Table) -> Curve:
    chance = (table.hits.sum() + 0.5) / (table.count.sum() + 1)
    return Curve((0.0,), (float(np.clip(chance, LEAST_CHANCE, 1 - LEAST_CHANCE)),))


def _platt(table: _Table) -> Curve:
    """Temperature and bias: sigmoid(slope * logit + bias), with the smoothed targets of Platt 1999 against a slope without end."""
    hits, misses = table.hits, table.count - table.hits
    if hits.sum() < 1e-9 or misses.sum() < 1e-9:
        return _level(table)
    high, low = (hits.sum() + 1) / (hits.sum() + 2), 1 / (misses.sum() + 2)
    ones = hits * high + misses * low
    labels, weights = np.repeat([1, 0], len(hits)), np.concatenate([ones, table.count - ones])
    regression = scikit_learn("linear_model").LogisticRegression(C=1e6, max_iter=1000)
    regression.fit(np.tile(table.logit, 2)[:, None], labels, sample_weight=weights)
    slope, bias = float(regression.coef_[0, 0]), float(regression.intercept_[0])
    if slope < LEAST_SLOPE:
        return _level(table)
    limit = np.log(1 / LEAST_CHANCE - 1)
    wanted = np.linspace(-limit, limit, POINTS)
    return _curve((wanted - bias) / slope, 1 / (1 + np.exp(-wanted)))


def _isotonic(table: _Table) -> Curve:
    """The nondecreasing steps nearest to what was observed, joined by lines."""
    coarse = table.coarse(POINTS)
    regression = (
        scikit_learn("isotonic")
        .IsotonicRegression()
        .fit(coarse.logit, (coarse.hits + 0.5) / (coarse.count + 1), sample_weight=coarse.count)
    )
    return _curve(regression.X_thresholds_, regression.y_thresholds_)


def _curve(logits: Floats, chances: Floats) -> Curve:
    clipped = np.clip(chances, LEAST_CHANCE, 1 - LEAST_CHANCE)
    return Curve(tuple(map(float, logits)), tuple(map(float, clipped)))


def _apply(curve: Curve, logits: Floats) -> Floats:
    """`Curve.__call__` for an array."""
    return np.interp(logits, curve.logits, curve.chances)


def _chances(curves: tuple[Curve, ...], logits: Floats, index: Integers) -> Floats:
    """`Survival.chance` for arrays."""
    chances = np.empty(len(logits))
    for position, curve in enumerate(curves):
        here = index == position if position + 1 < len(curves) else index >= position
        chances[here] = _apply(curve, logits[here])
    return chances


def _by_position(method: Method, logits: Floats, tokens: JudgedTokens) -> tuple[Curve, ...]:
    pooled = _Table.of(logits, tokens.accepted)
    prior = pooled.prior(method(pooled))
    positions = [tokens.index == position for position in range(int(tokens.index.max()) + 1)]
    return tuple(method(_Table.of(logits[here], tokens.accepted[here]) + prior) for here in positions)


def _fit_curves(logits: Floats, tokens: JudgedTokens, fold: Integers) -> tuple[Curve, ...]:
    """By the method that, fitted on half of the folds, says more of the other half; by `_platt` where there is but one fold."""
    if tokens.accepted.all() or not tokens.accepted.any():
        return (_level(_Table.of(logits, tokens.accepted)),)
    half = np.unique(fold, return_inverse=True)[1] % 2
    if not half.any():
        return _by_position(_platt, logits, tokens)
    methods = (_platt, _isotonic)
    losses = [_log_loss(_held_out(logits, tokens, half, method), tokens.accepted).sum() for method in methods]
    return _by_position(methods[int(np.argmin(losses))], logits, tokens)


def _held_out(logits: Floats, tokens: JudgedTokens, fold: Integers, method: Method | None = None) -> Floats:
    """Each token's chance by curves of the other folds: of `method`, by default of the one that these choose."""
    chances = np.empty(len(tokens))
    for left_out in np.unique(fold):
        out, rest = fold == left_out, fold != left_out
        curves = (
            _by_position(method, logits[rest], tokens.of(rest))
            if method
            else _fit_curves(logits[rest], tokens.of(rest), fold[rest])
        )
        chances[out] = _chances(curves, logits[out], tokens.index[out])
    return chances


# --- The confidence head ---


def _fit_head(signal: Signal, tokens: JudgedTokens, fold: Integers, bundle: str, seed: int) -> tuple[Survival, Floats]:
    """The head with its curves, fitted on all, and each token's chance by what was fitted on the other folds.

    Curves see logits of tokens that the weights have not seen: on those that they have, a head is too sure of itself.
    """
    folds, bare = range(int(fold.max()) + 1), _bare(tokens)
    few = np.zeros(len(tokens), np.bool_)
    few[np.random.default_rng(seed).permutation(len(tokens))[:MOST_ROWS]] = True

    @cache
    def without(strength: float, *left_out: int) -> Floats:
        return _fit_weights(tokens, few & ~np.isin(fold, left_out), strength)

    def unseen(strength: float, judged: int | None = None) -> Floats:
        """Logits of each fold by weights fitted without it, nor without `judged`, whose own stay 0."""
        logits = np.zeros(len(tokens))
        for one in folds:
            if one != judged:
                here = fold == one
                logits[here] = _logits(
                    tokens.features[here], without(strength, *sorted({one, one if judged is None else judged}))
                )
        return logits

    losses = np.zeros((len(folds), len(STRENGTHS)))
    chances = np.empty(len(tokens))
    for judged in folds:
        out, rest = fold == judged, fold != judged
        tried = [unseen(strength, judged) for strength in STRENGTHS]
        losses[judged] = [np.logaddexp(0, np.where(tokens.accepted, -logits, logits))[rest].sum() for logits in tried]
        best = int(losses[judged].argmin())
        curves = _fit_curves(tried[best][rest], bare.of(rest), fold[rest])
        logits = _logits(tokens.features[out], without(STRENGTHS[best], judged))
        chances[out] = _chances(curves, logits, tokens.index[out])
    strength = STRENGTHS[int(losses.sum(axis=0).argmin())]
    curves = _fit_curves(unseen(strength), bare, fold)
    return Survival(SURVIVAL_VERSION, bundle, signal, curves, tuple(map(float, without(strength)))), chances


def _fit_weights(tokens: JudgedTokens, rows: Bools, strength: float) -> Floats:
    """`[F + 1]`, the bias last, of the features as they are. One fate for all: that chance, whatever the features."""
    features, accepted = tokens.features[rows], tokens.accepted[rows]
    if accepted.all() or not accepted.any():
        chance = (accepted.sum() + 0.5) / (len(accepted) + 1)
        return np.append(np.zeros(features.shape[1]), np.log(chance / (1 - chance)))
    # In place and in float32: real drafts have thousands of features. Boolean rows are a copy.
    mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    features -= mean
    spread = np.sqrt(np.einsum("nf,nf->f", features, features) / len(features))
    spread[spread < 1e-6 * np.abs(mean) + 1e-12] = np.inf  # a feature that never changes gets no weight
    features /= spread
    regression = (
        scikit_learn("linear_model").LogisticRegression(C=strength, tol=1e-3, max_iter=1000).fit(features, accepted)
    )
    weights = regression.coef_[0].astype(np.float64) / spread
    return np.append(weights, float(regression.intercept_[0]) - weights @ mean)


def _logits(features: NDArray[np.float32], weights: Floats) -> Floats:
    """In float32, as the draft's graph computes them."""
    return (features @ weights[:-1].astype(np.float32) + np.float32(weights[-1])).astype(np.float64)
