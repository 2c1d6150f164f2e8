"""Tables in Markdown whose columns are aligned, so that they read in a terminal too, and numbers as their cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .statistics.intervals import UNBOUNDED
from .statistics.results import Interval

NOTHING = "-"


def table(columns: str, rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """A Markdown table, empty without rows. columns: their names, with a bar between them. words: how many columns at
    the start hold words, and are aligned to the left; a last column `remark` is too.
    """
    from rich.cells import cell_len  # characters of some scripts take two columns

    names = columns.split("|")
    grid = [[printable(str(cell)).replace("|", r"\|") for cell in row] for row in rows]
    if not grid:
        return ""
    left = [place < words or name == "remark" for place, name in enumerate(names)]
    widths = [max(3, *map(cell_len, column)) for column in zip(names, *grid, strict=True)]

    def line(cells: Sequence[str]) -> str:
        filled = []
        for cell, width, to_left in zip(cells, widths, left, strict=True):
            space = " " * (width - cell_len(cell))
            filled.append(cell + space if to_left else space + cell)
        return f"| {' | '.join(filled)} |"

    rule = ["-" * width if to_left else "-" * (width - 1) + ":" for width, to_left in zip(widths, left, strict=True)]
    return "\n".join(map(line, [names, rule, *grid]))


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
    known = math.isfinite(interval.low) and interval.high < UNBOUNDED
    return f"{number(interval.low)} to {number(interval.high)}" if known else "unknown"


def milliseconds(seconds: float) -> str:
    """`seconds` in milliseconds, with three significant digits or more."""
    value = 1000 * seconds
    return number(value, 3 if value < 1 else 2 if value < 100 else 1)
