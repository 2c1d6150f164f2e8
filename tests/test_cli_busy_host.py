"""A warning before times are measured: other processes need the CPUs."""

from __future__ import annotations

import os

import pytest
from specexport.cli.busy_host import note_busy_host


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (2.4, ""),
        (
            2.6,
            "this host is busy: 2.6 processes want to run on 2 CPUs, so times vary more than these figures say; fewer "
            "--threads may be faster here\n",
        ),
    ],
)
def test_a_load_above_the_cpus_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, told: str
) -> None:
    monkeypatch.setattr("specexport.engines.cpus.allowed_cpus", lambda: [0, 1])
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    note_busy_host()
    assert capsys.readouterr().err == told


def test_a_system_without_a_load_is_never_busy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "getloadavg")
    note_busy_host()
    assert capsys.readouterr().err == ""
