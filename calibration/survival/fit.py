"""A draft token's chance of acceptance, learnt from judged tokens with each signal; the better signal is kept."""

from __future__ import annotations

import numpy as np

from ...errors import ParameterError
from ...runtime.policy.survival import SURVIVAL_VERSION, Survival
from ..measuring.record import JudgedTokens
from ..statistics.results import SignalQuality
from .curves import cross_val_probs, fit_curves, log_loss
from .quality import Floats, Integers, judge

FOLDS = 5
# Judged tokens that a survival signal needs.
MIN_TOKENS = 200


def fit_survival(tokens: JudgedTokens, bundle: str, seed: int = 0) -> tuple[Survival, tuple[SignalQuality, ...]]:
    """(the survival of `bundle`, fitted on all requests; the quality of each signal that was tried).

    bundle: `bundle_identity`. Signals: `probability`, the logit of the draft's largest probability; `confidence`, the
    draft's own logit, where it gives one. Both are calibrated by position, each on the tokens that got that far, so
    that the product of the chances is the survival.

    Every token is judged by a fit that has not seen its request: `FOLDS` groups of whole requests, drawn with `seed`.
    With one request there is nothing to judge on, and no quality. The signal with the smaller log loss is kept,
    `confidence` if it is better by two standard errors: log loss measures calibration and sharpness, whereas
    calibration error alone would prefer a flat curve.

    Rounds with a NaN are left out. Raises `ParameterError` if no token is left.
    """
    tokens = _finite(tokens)
    if not len(tokens):
        raise ParameterError(
            "no draft token was judged, so acceptance cannot be estimated; give prompts on which the drafter "
            "proposes tokens",
            "prompts",
        )
    fold = _folds(tokens.request, seed)
    logits = tokens.probability.astype(np.float64)
    probability = Survival(SURVIVAL_VERSION, bundle, "probability", fit_curves(logits, tokens))
    if fold.max() == 0:
        return probability, ()
    chances = cross_val_probs(logits, tokens, fold)
    quality = judge("probability", chances, tokens.accepted)
    if np.isnan(tokens.confidence).all():
        return probability, (quality,)
    logits = tokens.confidence.astype(np.float64)
    own = cross_val_probs(logits, tokens, fold)
    qualities = quality, judge("confidence", own, tokens.accepted)
    gain = log_loss(chances, tokens.accepted) - log_loss(own, tokens.accepted)
    if gain.sum() > 2 * _standard_error(gain, tokens.request):
        return Survival(SURVIVAL_VERSION, bundle, "confidence", fit_curves(logits, tokens)), qualities
    return probability, qualities


def _finite(tokens: JudgedTokens) -> JudgedTokens:
    """Without the rounds of a draft whose logits were no numbers, or its confidence, where it gives one."""
    own = tokens.confidence if np.isfinite(tokens.confidence).any() else np.zeros(len(tokens))
    broken = ~(np.isfinite(tokens.probability) & np.isfinite(own))
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
