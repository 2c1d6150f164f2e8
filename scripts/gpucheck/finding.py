"""The result of a proof."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """detail: one line for people: what was compared, and how much it differed."""

    name: str
    passed: bool
    detail: str
