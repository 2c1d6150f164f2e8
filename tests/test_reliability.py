"""benchmarks/reliability: its checks find what they are for, and short runs of its parts find nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reliability.client import Answer
from reliability.command import main
from reliability.fuzz import FuzzOptions, fuzz
from reliability.slope import fit
from reliability.soak import SoakOptions, Tally, soak

TIMES = np.arange(0, 3600, 6.0)


def test_a_series_that_grows_is_told_from_one_that_does_not() -> None:
    noise = np.random.default_rng(0).normal(size=len(TIMES))
    level, rising = fit(TIMES, 100 + noise), fit(TIMES, 100 + noise + TIMES / 600)
    assert level.flat
    assert level.low < 0 < level.high
    assert not rising.flat
    assert rising.low < 6 < rising.high  # 10 an hour, of which the warm-up shows a part
    assert fit(TIMES, [7.0] * len(TIMES)).per_hour == 0
    with pytest.raises(ValueError, match="too few"):
        fit(TIMES[:10], TIMES[:10])


def test_what_is_no_refusal_is_wrong() -> None:
    tally = Tally()
    tally.note("a", Answer(503, {"retry-after": "1"}), frozenset({200}))
    tally.note("a", Answer(200, told="x"), frozenset({200}), 1)
    tally.note("a", Answer(200, error='{"error":{"code":"queue_timeout"}}'), frozenset({200}))
    assert tally.wrong == []
    tally.note("a", Answer(200, error='{"error":{"code":"queue_full"}}'), frozenset({200}))
    assert tally.statuses["a", 503] == 3
    for answer in (Answer(503), Answer(500, {"retry-after": "1"}), Answer(200, error="an error")):
        tally.note("a", answer, frozenset({200}))
    assert len(tally.wrong) == 3
    assert tally.said[1] == {"x": 1}


@pytest.mark.slow
def test_some_damaged_bundles(built: Path) -> None:
    found = fuzz(built, FuzzOptions(mutations=20, seed=1))
    assert found["passed"], found["bad"]
    assert sum(count for *_, count in found["counts"]) == 20


@pytest.mark.nightly
def test_a_server_under_random_requests(demo_bundle: Path) -> None:
    """What an hour of it says is in docs/reliability.md; memory is not judged in a minute."""
    found = soak(demo_bundle, SoakOptions(minutes=0.5, seed=1, distinct=30))
    assert found["passed"], (found["wrong"], found["different"])
    assert found["compared"]["answers"] > 20  # more than the warm-up's


@pytest.mark.nightly
def test_the_command_writes_a_report_and_keeps_other_parts(built: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    report.with_suffix(".json").write_text(json.dumps({"other": {"passed": True}}))
    assert main([str(built), "--part", "fuzz", "--mutations", "5", "-o", str(report)]) == 0
    kept = json.loads(report.with_suffix(".json").read_text())
    assert kept.keys() == {"other", "fuzz"}
    text = report.read_text()
    assert "Damaged bundles" in text
