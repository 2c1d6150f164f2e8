"""The times of a build's stages, as lines that add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..editing.progress import StageTime


def time_lines(stages: Sequence[StageTime], seconds: float) -> list[str]:
    """One line per stage, one for the time between stages, and their sum. seconds: the command's total time."""
    told = [round(stage.seconds, 1) for stage in stages]
    rest = max(0.0, round(seconds - sum(told), 1))
    shown = ["reused" if stage.reused else f"{time:6.1f} s" for stage, time in zip(stages, told, strict=True)]
    lines = [(stage.label, time) for stage, time in zip(stages, shown, strict=True)]
    lines += [("everything else", f"{rest:6.1f} s"), ("total", f"{sum(told) + rest:6.1f} s")]
    return [f"{label:<20} {time}" for label, time in lines]
