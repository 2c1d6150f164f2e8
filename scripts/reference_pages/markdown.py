"""Paragraphs and tables of a page."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 120


def wrap(text: str) -> str:
    r"""A paragraph of help in Markdown; one that click leaves unwrapped, after `\b`, becomes a block of code."""
    if text.startswith("\b\n"):
        return textwrap.indent(inspect.cleandoc(text[2:]), "    ")
    return textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False, break_long_words=False)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines])
