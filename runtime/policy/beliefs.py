"""How far what happens moves a belief in a draft, in logits."""

from __future__ import annotations

import math

# One draft token moves what the request believes, and what the session's later ones of the route do.
REQUEST_RATE = 0.3
ROUTE_RATE = 0.02
FARTHEST = 6.0
LEAST = 1.0 / (1.0 + math.exp(FARTHEST))  # a chance that far below even


def bounded(logit: float) -> float:
    return logit if -FARTHEST <= logit <= FARTHEST else math.copysign(FARTHEST, logit)


def logit(chance: float) -> float:
    return bounded(math.log(max(chance, 1e-9) / max(1.0 - chance, 1e-9)))


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))
