"""What a terminal is told while a bundle is loaded."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest
import rich.console
from specexport.cli import progress
from specexport.errors import BundleError
from specexport.runtime import load as loader


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was shown, on a terminal."""
    found: list[str] = []
    console = rich.console.Console

    def terminal(**options: Any) -> rich.console.Console:
        made = console(**options, force_terminal=True)
        status = made.status

        def spied(text: str) -> Any:
            one = status(text)
            start = one.start
            one.start = lambda: (found.append(text), start(), started.set())  # type: ignore[method-assign,assignment]
            return one

        made.status = spied  # type: ignore[method-assign,assignment]
        return made

    started = Event()
    monkeypatch.setattr(rich.console, "Console", terminal)
    monkeypatch.setattr(loader, "load", lambda *_, **__: started.wait(30))
    return found


def test_a_terminal_is_told_what_takes_a_moment(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MOMENT", 0.01)
    assert progress.load(Path("x[b].bundle"))
    assert shown == ["loading x\\[b].bundle: preparing its graphs"]


def test_what_is_loaded_at_once_or_fails_says_nothing(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BundleError("none")

    monkeypatch.setattr(loader, "load", lambda *_, **__: 7)
    assert progress.load(Path("x.bundle")) == 7
    monkeypatch.setattr(loader, "load", fail)
    with pytest.raises(BundleError):
        progress.load(Path("x.bundle"))
    assert shown == []


def test_without_a_terminal_nothing_is_said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    waited = Event()
    monkeypatch.setattr(progress, "MOMENT", 0.0)
    monkeypatch.setattr(loader, "load", lambda *_, **__: not waited.wait(0.2))
    assert progress.load(Path("x.bundle"))
    assert capfd.readouterr() == ("", "")
