"""A draft token's chance of acceptance, learnt from judged tokens and their confidence."""

from __future__ import annotations

import numpy as np

from ...runtime.policy.survival import SURVIVAL_VERSION, Survival
from ..measuring.record import JudgedTokens
from ..statistics.results import EstimateQuality
from .curves import cross_val_probs, fit_curves
from .quality import Integers, judge

FOLDS = 5
# Judged tokens that a fit needs.
MIN_TOKENS = 200


def fit_survival(tokens: JudgedTokens, bundle: str) -> tuple[Survival, EstimateQuality]:
    """(the survival of `bundle`, fitted on all requests; how good it is). bundle: `bundle_identity`.

    The draft's confidence is calibrated by position, each on the tokens that got that far, so that the product of the
    chances is the survival.

    Every token is judged by a fit that has not seen its request: `FOLDS` groups of whole requests, of which there must
    be two.
    """
    chances = cross_val_probs(tokens, _folds(tokens.request))
    return Survival(SURVIVAL_VERSION, bundle, fit_curves(tokens)), judge(chances, tokens.accepted)


def _folds(request: Integers) -> Integers:
    """The fold of each token `[n]`, from 0: whole requests, since tokens of one request are alike."""
    requests, numbers = np.unique(request, return_inverse=True)
    folds: Integers = np.random.default_rng(0).permutation(len(requests)) % FOLDS
    return folds[numbers]
