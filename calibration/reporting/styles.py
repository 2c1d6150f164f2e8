"""What figures share: the look of a series, legends, axes of whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .svg import DASHES, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^Dv"


@dataclass(frozen=True)
class Style:
    """The look of series `index` in every figure and legend; the first 32 all differ."""

    index: int

    @property
    def line(self) -> dict[str, Any]:
        return {
            "color": SERIES[self.index % len(SERIES)],
            "linestyle": DASHES[self.index // len(SERIES) % len(DASHES)],
            "marker": MARKERS[self.index % len(MARKERS)],
        }


@dataclass(frozen=True)
class Entry:
    """A line of a legend: a swatch and its name."""

    svg: str
    name: str


@dataclass(frozen=True)
class Figure:
    """svg: an element for the page. wide: shown alone; others are shown side by side, with captions."""

    svg: str
    caption: str = ""
    legend: tuple[Entry, ...] = ()
    wide: bool = False


def positions(axes: Axes, last: int, label: str, first: int = 1) -> None:
    """Integer ticks on the x axis, few enough to read."""
    last = max(first, last)
    stride = max(1, math.ceil((last - first + 1) / 12))
    axes.set_xticks(range(first, last + 1, stride))
    axes.set_xlim(first - 0.4, last + 0.4)
    axes.set_xlabel(label)
