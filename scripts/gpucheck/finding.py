"""What a proof found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """detail: one line for people, of what was compared and how far it was off."""

    name: str
    passed: bool
    detail: str
