"""What is to be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .presets import Effort
from .shapes import Shape


@dataclass(frozen=True)
class Plan:
    """Every engine on every pair in every precision.

    seconds: for all of it. work: where checkpoints and bundles stay for later runs, if anywhere.
    """

    shapes: Sequence[str]
    precisions: Sequence[str]
    effort: Effort
    seconds: float
    work: Path | None = None


@dataclass(frozen=True)
class Case:
    """One of them. bandwidth: bytes a second. work: the shape's folder; keep: whether bundles stay there."""

    shape: Shape
    precision: str
    engine: str
    effort: Effort
    bandwidth: float
    work: Path
    keep: bool
