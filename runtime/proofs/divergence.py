"""The divergence between two models' distributions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Logits


@dataclass(frozen=True)
class Divergence:
    """Over `rows` rows. nats: the mean KL divergence. agreement: the fraction of rows whose likeliest token is the
    same.
    """

    rows: int
    nats: float
    agreement: float


def divergence(pairs: Iterable[tuple[Logits, Logits]]) -> Divergence:
    """The divergence of the second from the first of each pair of logits `[R, vocab]`; NaN for logits that are not
    numbers.
    """
    rows, total, agreed = 0, 0.0, 0
    for wanted, found in pairs:
        for one, other in zip(wanted, found, strict=True):
            exact, ours = _log_probs(one), _log_probs(other)
            probable = exact > -np.inf  # tokens banned in both do not differ
            total += float(np.exp(exact[probable]) @ (exact[probable] - ours[probable]))
            agreed += int(np.argmax(one) == np.argmax(other))
            rows += 1
    nats = total / rows if rows else 0.0
    return Divergence(rows, nats if not nats < 0 else 0.0, agreed / rows if rows else 1.0)  # NaN stays


def _log_probs(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - np.max(logits)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
