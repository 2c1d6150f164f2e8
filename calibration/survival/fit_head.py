"""Fits the confidence head's weights and curves, and judges every token by a fit that has not seen its request.

The head is a logistic regression on the draft's features (DSpark, arXiv 2607.05147).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...runtime.policy.survival import SURVIVAL_VERSION, Signal, Survival
from ..measuring.judged_tokens import JudgedTokens
from .curves import fit_curves, predict_curves
from .quality import Bools, Floats, Integers, scikit_learn

# Inverse L2 strengths that are tried, on standardised features.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
# Tokens a fit uses at most; more change the weights little.
MAX_ROWS = 30_000


def fit_head(signal: Signal, tokens: JudgedTokens, fold: Integers, bundle: str, seed: int) -> tuple[Survival, Floats]:
    """(the head with its curves, fitted on all tokens; each token's chance `[n]` by a fit on the other folds).

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
