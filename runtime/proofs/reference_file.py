"""The file of a reference: its steps, and what the Hugging Face model gave at each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .parity import ReferenceStep, Step


def save_reference(path: Path, reference: list[ReferenceStep]) -> None:
    """Hidden states that several steps share are written once: the others have the first one's index."""
    arrays: dict[str, NDArray[np.generic]] = {}
    written: dict[int, int] = {}
    for index, entry in enumerate(reference):
        arrays[f"{index}.tokens"] = entry.step.tokens
        arrays[f"{index}.place"] = np.array([entry.step.position, entry.step.rows, entry.step.poison])
        arrays[f"{index}.logits"] = entry.logits
        if entry.step.hidden is not None:
            first = written.setdefault(id(entry.step.hidden), index)
            arrays[f"{index}.hidden"] = entry.step.hidden if first == index else np.array(first)
        if entry.confidence is not None:
            arrays[f"{index}.confidence"] = entry.confidence
    np.savez(path, allow_pickle=False, **arrays)


def load_reference(path: Path) -> list[ReferenceStep]:
    found: list[ReferenceStep] = []
    with np.load(path, allow_pickle=False) as arrays:
        for index in range(sum(name.endswith(".tokens") for name in arrays)):
            found.append(_entry(arrays, index, found))
    return found


def _entry(arrays: Mapping[str, NDArray[np.generic]], index: int, before: Sequence[ReferenceStep]) -> ReferenceStep:
    position, rows, poison = (int(value) for value in arrays[f"{index}.place"])
    hidden, confidence = (arrays.get(f"{index}.{name}") for name in ("hidden", "confidence"))
    if hidden is not None:
        hidden = before[int(hidden)].step.hidden if not hidden.ndim else hidden.astype(np.float32)
    step = Step(arrays[f"{index}.tokens"].astype(np.int64), position, rows, bool(poison), hidden)
    logits = arrays[f"{index}.logits"].astype(np.float32)
    return ReferenceStep(step, logits, None if confidence is None else confidence.astype(np.float32))
