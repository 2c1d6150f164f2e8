"""benchmarks/reliability: its checks find what they are for, and short runs of its parts find nothing."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from reliability.bad import draw as draw_bad
from reliability.client import Answer, streamed, whole
from reliability.command import main
from reliability.fuzz import FuzzOptions, fuzz, report
from reliability.fuzz_case import Case, Outcome
from reliability.good import Pool
from reliability.growth import growth
from reliability.mutations import bytes_damaged, json_damaged
from reliability.slope import fit
from reliability.soak import SoakOptions, Tally, log_faults, soak

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


def test_growth_within_the_warm_up_does_not_count() -> None:
    assert fit(TIMES, np.minimum(TIMES, 800)).per_hour == pytest.approx(0)


def test_a_server_that_keeps_answers_is_told_from_one_that_does_not() -> None:
    """Answers of 4 KiB, one a step of an allocator that moves in steps of 2 MiB."""
    counts = list(range(0, 12_000, 20))
    noise = np.random.default_rng(0).integers(0, 2, len(counts)) * (2 << 20)
    settled = [(200 << 20) + min(count, 3000) * 9000 + int(step) for count, step in zip(counts, noise, strict=True)]
    leaking = [(200 << 20) + count * 4500 + int(step) for count, step in zip(counts, noise, strict=True)]
    answered = counts[-1] * 4096
    for rss, kept in ((settled, False), (leaking, True)):
        found = growth(rss, counts, answered)
        assert found.judged
        assert found.kept == kept
    few = growth(leaking[:60], counts[:60], 60 * 20 * 4096)
    assert not few.judged
    assert not few.kept
    assert few.told.endswith("too few to judge")


def test_damage_comes_from_its_seed_and_is_never_none() -> None:
    data = json.dumps({"a": [1, 2, {"b": "text"}], "c": 0.5, "d": None}).encode()
    for damaged in (bytes_damaged, json_damaged):
        found = [damaged(data, random.Random(seed)) for seed in range(300)]
        assert found == [damaged(data, random.Random(seed)) for seed in range(300)]
        assert data not in found
        assert len(set(found)) > 200
    assert all(json.loads(one) != json.loads(data) for one in found)


def test_the_same_seed_asks_the_same() -> None:
    one, other = (Pool(3, 50, 1024, tools=True).requests for _ in range(2))
    assert one == other
    assert {request.kind for request in one} >= {"schema", "regex", "tools", "long", "several"}
    spoiled = [draw_bad(random.Random(seed), one[seed % 50], 1024) for seed in range(200)]
    assert spoiled == [draw_bad(random.Random(seed), one[seed % 50], 1024) for seed in range(200)]
    assert len({request.kind for request in spoiled}) > 10


def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"content": "Hi", "tool_calls": [call]}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    deltas: list[dict[str, Any]] = [
        {"content": "H"},
        {"content": "i", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
    ]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    assert streamed("".join([*lines, "data: [DONE]\n\n"]).encode()) == (whole(answer), None)
    cut, error = streamed("".join(lines).encode())
    assert cut is None
    assert error is not None


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


def test_a_log_with_a_traceback_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"level": "info"}\n')
    assert log_faults(log) == []
    log.write_text('{"level": "info"}\nTraceback (most recent call last):\n{"level": "error"}\n')
    assert len(log_faults(log)) == 2


def test_another_model_is_no_fault_and_wrong_tokens_are() -> None:
    options = FuzzOptions(1)
    cases = {fixed: Case(0, "graphs/x.onnx", "bytes", fixed) for fixed in (False, True)}
    assert report([(cases[True], Outcome("wrong", "", 0.1))], options)["passed"]
    assert not report([(cases[False], Outcome("wrong", "", 0.1))], options)["passed"]
    for kind in ("traceback", "crash", "hang"):
        assert not report([(cases[True], Outcome(kind, "", 0.1))], options)["passed"]


def test_some_damaged_bundles(built: Path) -> None:
    found = fuzz(built, FuzzOptions(mutations=20, seed=1))
    assert found["passed"], found["bad"]
    assert sum(count for *_, count in found["counts"]) == 20


@pytest.mark.slow
def test_many_damaged_bundles(built: Path) -> None:
    found = fuzz(built, FuzzOptions(mutations=300, seed=2))
    assert found["passed"], found["bad"]
    assert {kind for *_, kind, _ in found["counts"]} >= {"error", "right"}


@pytest.mark.slow
def test_a_server_under_random_requests(demo_bundle: Path) -> None:
    """What an hour of it says is in docs/reliability.md; memory is not judged in a minute."""
    found = soak(demo_bundle, SoakOptions(minutes=0.5, seed=1, distinct=30))
    assert found["passed"], (found["wrong"], found["different"])
    assert found["compared"]["answers"] > 20  # more than the warm-up's


@pytest.mark.slow
def test_the_command_writes_a_page_and_keeps_other_parts(built: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.with_suffix(".json").write_text(json.dumps({"other": {"passed": True}}))
    assert main([str(built), "--part", "fuzz", "--mutations", "5", "-o", str(page)]) == 0
    kept = json.loads(page.with_suffix(".json").read_text())
    assert kept.keys() == {"other", "fuzz"}
    text = page.read_text()
    assert "Damaged bundles" in text
    assert "data:image/svg+xml" in text
