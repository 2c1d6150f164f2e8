"""An analysis as text for a terminal: the report's sections, or only the verdicts, without figures and explanations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..statistics.results import Analysis
from .sections import sections
from .tables import Table

WIDTH = 110
GAP = "  "
# Columns of words are cut to make a table fit, but not below this width.
NARROWEST = 12


def render(analysis: Analysis, details: bool = True) -> str:
    """Lines of at most `WIDTH` columns, no colours; the same numbers as in the report. details: all sections, and not
    only the verdicts.
    """
    lines: list[str] = []
    for section in sections(analysis)[: None if details else 1]:
        lines += ["", section.title] if lines else [section.title]
        for one in section.decided:
            lines += _wrapped(f"{one.verdict} {one.route}: {one.words}")
        if not section.tables:
            lines += _wrapped(section.words)
        for table in section.tables:
            if table.rows:
                lines += ["", *_table(table)]
        for finding in section.findings:
            lines += _wrapped(finding)
    return "\n".join(lines)


def _wrapped(text: str) -> Iterator[str]:
    """Lines of at most `WIDTH` columns, all but the first indented."""
    from rich.cells import cell_len, chop_cells

    line = ""
    for word in (part for whole in text.split() for part in chop_cells(whole, WIDTH - 4)):
        if line.strip() and cell_len(line) + 1 + cell_len(word) > WIDTH:
            yield line
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line


def _table(table: Table) -> Iterator[str]:
    """Aligned columns, numbers to the right; a table of words only is a line per row.

    Columns that do not fit are continued below, with the first columns repeated.
    """
    if table.texts == len(table.columns):
        for name, *values in table.rows:
            yield from _wrapped(f"{name}: {' '.join(values)}")
        return
    grid = [list(table.columns), *map(list, table.rows)]
    widths = _widths(grid, table)
    words = {*range(table.texts), *([len(table.columns) - 1] if table.remark else [])}
    for index, columns in enumerate(_pages(widths, table.texts)):
        if index:
            yield ""
        for row in grid:
            cells = (_cell(row[column], widths[column], column in words) for column in columns)
            yield GAP.join(cells).rstrip()


def _widths(grid: Sequence[Sequence[str]], table: Table) -> list[int]:
    """Widths of the widest cells; the widest columns of words are cut while the table is too wide."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*grid, strict=True)]
    while table.texts and (excess := sum(widths) + len(GAP) * (len(widths) - 1) - WIDTH) > 0:
        widest = max(range(table.texts), key=lambda column: widths[column])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] = max(NARROWEST, widths[widest] - excess)
    return widths


def _pages(widths: Sequence[int], texts: int) -> Iterator[list[int]]:
    first = list(range(texts))
    page = list(first)
    for column in range(texts, len(widths)):
        needed = sum(widths[one] for one in [*page, column]) + len(GAP) * len(page)
        if needed > WIDTH and page != first:
            yield page
            page = list(first)
        page.append(column)
    yield page


def _cell(text: str, width: int, words: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "\N{HORIZONTAL ELLIPSIS}"
    filling = " " * (width - cell_len(text))
    return text + filling if words else filling + text
