"""Axes that only write down what is drawn on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


class Paper:
    """Axes that remember what was drawn: (method, arguments, keywords)."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.drawn: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def write(*arguments: Any, **keywords: Any) -> None:
            self.drawn.append(
                (name, tuple(list(one) if isinstance(one, range) else one for one in arguments), keywords)
            )

        return write

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, keywords) for method, arguments, keywords in self.drawn if method == name]

    def one(self, name: str) -> tuple[Any, ...]:
        ((arguments, _),) = self.of(name)
        return arguments


def papers_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Paper]:
    """Those that the module will draw on, in order; swatches are the look as a string."""
    used: list[Paper] = []

    @contextmanager
    def drawing(title: str, *size_and_names: Any) -> Iterator[tuple[Paper, list[str]]]:
        drawn: list[str] = []
        used.append(Paper(title))
        yield used[-1], drawn
        drawn.append("<svg></svg>")

    monkeypatch.setattr(module, "drawing", drawing)
    monkeypatch.setattr(module, "swatch", str)
    return used
