"""How far one observation moves an estimate of a draft's acceptance, in logits."""

from __future__ import annotations

import math

# Step per draft token: of the request's own estimate, and of the session's estimate for later requests of the route.
REQUEST_RATE = 0.3
ROUTE_RATE = 0.02
FARTHEST = 6.0
LEAST = 1.0 / (1.0 + math.exp(FARTHEST))  # a probability that far below even odds


def bounded(logit: float) -> float:
    return logit if -FARTHEST <= logit <= FARTHEST else math.copysign(FARTHEST, logit)


def logit(chance: float) -> float:
    return bounded(math.log(max(chance, 1e-9) / max(1.0 - chance, 1e-9)))


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))
