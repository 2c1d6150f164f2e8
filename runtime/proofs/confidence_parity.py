"""The proof of the confidences that a draft was trained to give with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...bundle import Proof
from ...engines.base import Decoder, Logits, Reader
from .parity import Arithmetic, ReferenceStep, logits_of, measure


def measure_confidences(
    decoder: Decoder,
    reference: Sequence[ReferenceStep],
    where: tuple[str, str],
    role: str,
    kind: Arithmetic,
    reader: Reader | None,
    confidence: Callable[[], float] | None,
) -> Iterator[Proof]:
    """Nothing where none are recorded. where: engine and dialect. kind: the arithmetic of the graph."""
    recorded = [one.confidence for one in reference if one.confidence is not None]
    if not recorded:
        return
    found = list[Logits]()
    for entry, _ in zip(reference, logits_of(decoder, list(reference), reader), strict=True):
        if entry.confidence is not None:
            found.append(_as_logits(np.full(entry.step.rows, confidence() if confidence else np.nan, np.float32)))
    steps = [one.step for one in reference if one.confidence is not None]
    wanted = [ReferenceStep(step, _as_logits(one)) for step, one in zip(steps, recorded, strict=True)]
    engine, dialect = where
    yield measure(wanted, found, engine, f"{dialect}, confidences", role, kind)


def _as_logits(confidences: NDArray[np.float32]) -> Logits:
    """A confidence is a logit against 0; the 1 beside them keeps the spread from 0 where all confidences are."""
    return np.stack([confidences, np.zeros_like(confidences), np.ones_like(confidences)], 1)
