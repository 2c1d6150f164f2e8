"""Tables of formatted cells, and the formats of numbers and names, for the report and the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..statistics.intervals import UNBOUNDED
from ..statistics.results import Interval

NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells.

    The first `texts` columns hold words, and so does the last one if `remark` is set; the others hold numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    remark: bool = False


@dataclass(frozen=True)
class Decision:
    """verdict: `ON`, `OFF` or `UNDECIDED`. words: why, in a sentence. speedup: with its 95 % interval, between."""

    verdict: str
    route: str
    words: str
    speedup: str
    between: str


@dataclass(frozen=True)
class Section:
    """key: its figures' key. words: how to read it, by paragraph. findings: sentences about this analysis."""

    key: str
    title: str
    words: tuple[str, ...]
    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    decided: tuple[Decision, ...] = ()


def printable(text: str) -> str:
    """`text` with control, direction-changing and non-text characters replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def times(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else NOTHING


def number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else NOTHING


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %" if math.isfinite(value) else NOTHING


def between(interval: Interval) -> str:
    if not (math.isfinite(interval.low) and interval.high < UNBOUNDED):
        return "unknown"
    return f"{number(interval.low)} to {number(interval.high)}"


def milliseconds(seconds: float) -> str:
    """`seconds` in milliseconds, with three significant digits or more."""
    value = 1000 * seconds
    return number(value, 3 if value < 1 else 2 if value < 100 else 1)


def rate(seconds_per_token: float) -> str:
    return f"{1 / seconds_per_token:,.0f} tokens/s" if seconds_per_token > 0 else "none"


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile `share` of the values, by linear interpolation; NaN without values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
