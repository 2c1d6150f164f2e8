from __future__ import annotations

import json

import pytest
from specexport.runtime.state.statistics import Statistics


def test_counts_by_position() -> None:
    statistics = Statistics()
    for drafted, accepted in ((3, 3), (3, 1), (2, 0), (0, 0), (4, 4)):
        statistics.add_round(["model"] * drafted, accepted)
    assert statistics.rounds == 5
    assert statistics.drafted_by_position == [4, 4, 3, 1]
    assert statistics.accepted_by_position == [3, 2, 2, 1]
    assert (statistics.drafted, statistics.accepted) == (12, 8)
    assert statistics.acceptance_rate == pytest.approx(8 / 12)
    # 8 accepted and one bonus or correction token in each of 5 rounds.
    assert statistics.mean_acceptance_length == pytest.approx(13 / 5)


def test_counts_by_source() -> None:
    statistics = Statistics()
    statistics.add_round(["prediction", "prediction", "lookup"], 1)
    statistics.add_round(["grammar", "model"], 0)
    assert (statistics.looked_up, statistics.predicted, statistics.predicted_accepted) == (3, 2, 1)
    assert (statistics.forced, statistics.drafted) == (1, 5)


def test_nothing_done_divides_by_nothing() -> None:
    statistics = Statistics()
    assert (statistics.acceptance_rate, statistics.mean_acceptance_length, statistics.tokens_per_second) == (
        0.0,
        0.0,
        0.0,
    )
    assert statistics.host_seconds == 0.0


def test_times() -> None:
    statistics = Statistics(emitted=6, prefill_seconds=1.0, draft_seconds=0.5, target_seconds=1.0, total_seconds=3.0)
    assert statistics.host_seconds == pytest.approx(0.5)
    assert statistics.decode_seconds == pytest.approx(2.0)
    assert statistics.tokens_per_second == pytest.approx(3.0)


def test_as_dict_is_json_and_holds_everything() -> None:
    statistics = Statistics(prompt_tokens=7, reused_tokens=3, emitted=2, total_seconds=0.123456789)
    statistics.add_round(["lookup", "model"], 1)
    row = json.loads(json.dumps(statistics.as_dict()))
    assert row["prompt_tokens"] == 7
    assert row["reused_tokens"] == 3
    assert row["looked_up"] == 1
    assert row["drafted"] == 2
    assert row["drafted_by_position"] == [1, 1]
    assert row["accepted_by_position"] == [1, 0]
    assert row["acceptance_rate"] == 0.5
    assert row["mean_acceptance_length"] == 2.0
    assert row["total_seconds"] == 0.123457
