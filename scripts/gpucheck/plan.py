"""The plan of a run: what is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .presets import Effort
from .shapes import Shape


@dataclass(frozen=True)
class Plan:
    """Every engine on every pair in every precision.

    seconds: time limit for all of it. work: folder where checkpoints and bundles are kept for later runs, if any.
    """

    shapes: Sequence[str]
    precisions: Sequence[str]
    effort: Effort
    seconds: float
    work: Path | None = None


@dataclass(frozen=True)
class Case:
    """One engine on one pair. bandwidth: bytes per second. work: the shape's folder. keep: whether to keep bundles."""

    shape: Shape
    precision: str
    engine: str
    effort: Effort
    bandwidth: float
    work: Path
    keep: bool
