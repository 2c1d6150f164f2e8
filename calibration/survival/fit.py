"""A draft token's chance of acceptance, learnt from judged tokens with several signals; the best signal is kept."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np

from ...errors import ParameterError
from ...runtime.policy.survival import SURVIVAL_VERSION, Signal, Survival
from ..measuring.judged_tokens import JudgedTokens
from ..statistics.results import SignalQuality
from .curves import cross_val_probs, fit_curves, log_loss
from .fit_head import fit_head
from .quality import Floats, Integers, judge, scikit_learn

FOLDS = 5
# Judged tokens that a survival signal needs.
MIN_TOKENS = 200


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
