"""A warning before times are measured: other processes need the CPUs."""

from __future__ import annotations

import os

import pytest
from specexport.cli.progress import note_busy_host


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (2.4, ""),
        (
            2.6,
            "this host may be busy: its load over the last minute is 2.6 on 2 CPUs, so times vary more than usual; "
            "fewer --threads may be faster\n",
        ),
    ],
)
def test_a_load_above_the_cpus_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, told: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    note_busy_host()
    assert capsys.readouterr().err == told


def test_a_system_without_a_load_is_never_busy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "getloadavg")
    note_busy_host()
    assert capsys.readouterr().err == ""
