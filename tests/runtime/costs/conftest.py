from __future__ import annotations

import pytest
from support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (
        "runtime.costs.meter",
        "runtime.session",
        "runtime.loop.chunks",
        "runtime.loop.speculate",
        "runtime.drafting.model_draft",
    ):
        monkeypatch.setattr(f"specexport.{module}.perf_counter", made)
    monkeypatch.setattr("specexport.runtime.costs.meter.describe_host", lambda *_: "a host")
    return made
