"""A draft token's chance of acceptance, learnt from judged tokens with several signals; the best signal is kept.

The confidence head is a logistic regression on the draft's features (DSpark, arXiv 2607.05147).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from ...errors import ParameterError
from ...runtime.policy.survival import SURVIVAL_VERSION, Signal, Survival
from ..measuring.judged_tokens import JudgedTokens
from ..statistics.results import SignalQuality
from .curves import cross_val_probs, fit_curves, log_loss, predict_curves
from .quality import Bools, Floats, Integers, judge, scikit_learn

FOLDS = 5
# Judged tokens that a survival signal needs.
MIN_TOKENS = 200
# Inverse L2 strengths that are tried, on standardised features.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
# Tokens a fit uses at most; more change the weights little.
MAX_ROWS = 30_000


def fit_survival(tokens: JudgedTokens, bundle: str, seed: int = 0) -> tuple[Survival, tuple[SignalQuality, ...]]:
    """(the survival of `bundle`, fitted on all requests; the quality of each signal that was tried).

    bundle: `bundle_identity`. Signals: `probability`, the logit of the draft's largest probability; `head`, a logistic
    regression on the draft's features, where there are features and 3 requests; `both`, the same with the probability's
    logit as one more feature. All are calibrated by position, each on the tokens that got that far, so that the product
    of the chances is the survival.

    Every token is judged by a fit that has not seen its request: `FOLDS` groups of whole requests, drawn with `seed`.
    With one request there is nothing to judge on, and no quality. The signal with the smallest log loss is kept: log
    loss measures calibration and sharpness, whereas calibration error alone would prefer a flat curve. A richer signal
    must be better than the simpler one by two standard errors (`both` than `head`, `head` than `probability`).

    Rounds with a NaN are left out. Runs on one thread, since these are many small problems. Raises `ParameterError` if
    no token is left, and `MissingPackageError` without scikit-learn.
    """
    tokens = _finite(tokens)
    if not len(tokens):
        raise ParameterError(
            "no draft token was judged, so acceptance cannot be estimated; give prompts on which the drafter "
            "proposes tokens",
            "prompts",
        )
    scikit_learn("linear_model")
    limit = import_module("threadpoolctl").threadpool_limits  # comes with scikit-learn
    # OpenBLAS sometimes flags an invalid operation for finite products, which would be a warning. `Curve` and
    # `Survival` raise an error for a NaN in the result anyway.
    with limit(1), np.errstate(invalid="ignore"):
        return _fit(tokens, bundle, seed)


def _fit(tokens: JudgedTokens, bundle: str, seed: int) -> tuple[Survival, tuple[SignalQuality, ...]]:
    fold = _folds(tokens.request, seed)
    logits, bare = tokens.probability.astype(np.float64), tokens.without_features()
    probability = Survival(SURVIVAL_VERSION, bundle, "probability", fit_curves(logits, bare), ())
    if fold.max() == 0:
        return probability, ()
    chances = cross_val_probs(logits, bare, fold)
    quality = judge("probability", chances, tokens.accepted)
    if not tokens.features.shape[1] or fold.max() < 2:
        return probability, (quality,)
    best, least, qualities = probability, log_loss(chances, tokens.accepted), [quality]
    heads: tuple[tuple[Signal, JudgedTokens], ...] = (("head", tokens), ("both", _with_probability(tokens)))
    for signal, seen in heads:
        head, head_probs = fit_head(signal, seen, fold, bundle, seed)
        qualities.append(judge(signal, head_probs, tokens.accepted))
        losses = log_loss(head_probs, tokens.accepted)
        if (least - losses).sum() > 2 * _standard_error(least - losses, tokens.request):
            best, least = head, losses
    return best, tuple(qualities)


def _with_probability(tokens: JudgedTokens) -> JudgedTokens:
    """The tokens with the logit of the probability as one more feature, the last."""
    return replace(tokens, features=np.concatenate([tokens.features, tokens.probability[:, None]], axis=1))


def _finite(tokens: JudgedTokens) -> JudgedTokens:
    broken = ~(np.isfinite(tokens.probability) & np.isfinite(tokens.features).all(axis=1))
    return tokens.of(~np.isin(tokens.round, tokens.round[broken]))


def _folds(request: Integers, seed: int) -> Integers:
    """The fold of each token `[n]`, from 0: whole requests, since tokens of one request are alike."""
    requests, numbers = np.unique(request, return_inverse=True)
    folds: Integers = np.random.default_rng(seed).permutation(len(requests)) % FOLDS
    return folds[numbers]


def _standard_error(values: Floats, request: Integers) -> float:
    """Standard error of the sum of `values` `[n]` when requests are drawn, not tokens."""
    numbers = np.unique(request, return_inverse=True)[1]
    sums = np.bincount(numbers, values) - np.bincount(numbers) * values.mean()
    return float(np.sqrt((sums**2).sum()))


def fit_head(signal: Signal, tokens: JudgedTokens, fold: Integers, bundle: str, seed: int) -> tuple[Survival, Floats]:
    """(the confidence head with its curves, fitted on all tokens; each token's chance `[n]` by a fit on other folds).

    Curves are fitted on logits of tokens that the weights were not fitted on: on those that they were fitted on, a head
    is overconfident.
    """
    folds, bare = range(int(fold.max()) + 1), tokens.without_features()
    few = np.zeros(len(tokens), np.bool_)
    few[np.random.default_rng(seed).permutation(len(tokens))[:MAX_ROWS]] = True

    @cache
    def without(strength: float, *left_out: int) -> Floats:
        return _fit_weights(tokens, few & ~np.isin(fold, left_out), strength)

    def unseen(strength: float, judged: int | None = None) -> Floats:
        """Logits of each fold by weights fitted without it and without `judged`, whose own logits stay 0."""
        logits = np.zeros(len(tokens))
        for one in folds:
            if one != judged:
                here = fold == one
                weights = without(strength, *sorted({one, one if judged is None else judged}))
                logits[here] = _logits(tokens.features[here], weights)
        return logits

    losses = np.zeros((len(folds), len(STRENGTHS)))
    chances = np.empty(len(tokens))
    for judged in folds:
        out, rest = fold == judged, fold != judged
        tried = [unseen(strength, judged) for strength in STRENGTHS]
        losses[judged] = [np.logaddexp(0, np.where(tokens.accepted, -logits, logits))[rest].sum() for logits in tried]
        best = int(losses[judged].argmin())
        curves = fit_curves(tried[best][rest], bare.of(rest))
        logits = _logits(tokens.features[out], without(STRENGTHS[best], judged))
        chances[out] = predict_curves(curves, logits, tokens.index[out])
    strength = STRENGTHS[int(losses.sum(axis=0).argmin())]
    curves = fit_curves(unseen(strength), bare)
    return Survival(SURVIVAL_VERSION, bundle, signal, curves, tuple(map(float, without(strength)))), chances


def _fit_weights(tokens: JudgedTokens, rows: Bools, strength: float) -> Floats:
    """Weights `[F + 1]` for unscaled features, the bias last. If all tokens were accepted, or none: only a bias."""
    features, accepted = tokens.features[rows], tokens.accepted[rows]
    if accepted.all() or not accepted.any():
        chance = (accepted.sum() + 0.5) / (len(accepted) + 1)
        return np.append(np.zeros(features.shape[1]), np.log(chance / (1 - chance)))
    # In place (indexing by booleans made a copy) and in float32: real drafts have thousands of features.
    mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    features -= mean
    spread = np.sqrt(np.einsum("nf,nf->f", features, features) / len(features))
    spread[spread < 1e-6 * np.abs(mean) + 1e-12] = np.inf  # a constant feature gets no weight
    features /= spread
    regression = scikit_learn("linear_model").LogisticRegression(C=strength, tol=1e-3, max_iter=1000)
    regression.fit(features, accepted)
    weights = regression.coef_[0].astype(np.float64) / spread
    return np.append(weights, float(regression.intercept_[0]) - weights @ mean)


def _logits(features: NDArray[np.float32], weights: Floats) -> Floats:
    """The head's logits, computed in float32, as in the draft's graph."""
    return (features @ weights[:-1].astype(np.float32) + np.float32(weights[-1])).astype(np.float64)
