from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from specexport.calibration.precision_search import PrecisionPair, Speed, against, measure_speeds, pick
from specexport.runtime.auto_precision import PrecisionCandidate, PrecisionTable, table_lines
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics


def candidate(loss: float, plain: float, speculative: float) -> PrecisionCandidate:
    return PrecisionCandidate("int8", "int4", 1, 0.0, loss, plain, speculative, 0.0, 0.0, 2.0, 1.0, 1.0, 1.0)


def test_the_fastest_of_those_that_keep_the_quality() -> None:
    exact, good, bad = candidate(0.0, 10, 20), candidate(0.01, 31, 30), candidate(0.011, 40, 99)
    assert pick([exact, good, bad], 0.01) is good
    assert pick([exact, good, bad], 0.005) is exact
    assert pick([exact, good, bad], 0.02) is bad


def test_what_decodes_fastest_with_drafts_is_taken() -> None:
    assert pick([candidate(0.0, 30, 10), drafts := candidate(0.0, 20, 25)], 0.01) is drafts


@pytest.mark.parametrize(("plain", "told"), [(90.0, True), (20.0, False)])
def test_the_table_says_what_is_faster_without_drafts_and_what_is_missing(plain: float, told: bool) -> None:
    taken, far = candidate(0.0, 25, 30), replace(candidate(0.03, 99, 10), draft="int8")
    other = replace(candidate(0.0, plain, 10), target="float", draft="float")
    table = PrecisionTable("here", 0.02, 1, 1, taken.target, taken.draft, (taken, far, other), ("draft in int4: off",))
    lines = list(table_lines(asdict(table)))
    assert [line.endswith("  <- taken") for line in lines[2:5]] == [True, False, False]
    assert [line.endswith("  moves too far") for line in lines[2:5]] == [False, True, False]
    assert lines[4].split()[:3] == ["fp32", "+", "fp32"]
    assert any("without drafts: the target in fp32, 90.0 tokens/s" in line for line in lines) == told
    assert lines[-1].strip() == "left out: draft in int4: off"


def test_a_close_call_is_marked() -> None:
    """Of those that may be as fast as the one taken, none that moves too far, and not the one taken."""
    taken = candidate(0.0, 25, 30)
    close = replace(candidate(0.0, 20, 29), draft="int8", slower=1.03, slower_low=0.98, slower_high=1.08)
    slow = replace(candidate(0.0, 20, 20), draft="float", slower=1.5, slower_low=1.01, slower_high=1.6)
    far = replace(candidate(0.03, 99, 29.5), target="int4", slower=1.02, slower_low=0.9, slower_high=1.1)
    table = PrecisionTable("here", 0.02, 2, 1, taken.target, taken.draft, (taken, close, slow, far), ())
    lines = list(table_lines(asdict(table)))
    assert [line.endswith("  close") for line in lines[2:6]] == [False, True, False, False]
    assert "a close call: int8 + int8 takes 1.03 times as long (0.98 to 1.08)" in lines[6]
    for other in (replace(table, candidates=(taken, slow, far)), replace(table, prompts=1)):
        assert not any("close" in line for line in table_lines(asdict(other)))


def test_times_are_held_against_the_pair_taken_prompt_by_prompt() -> None:
    """Prompts differ far more than pairs: unpaired, nothing could be told apart."""
    prompts = [1.0, 10.0, 2.0, 20.0, 5.0, 9.0]
    taken = speed([0.1 * prompt for prompt in prompts])
    other = speed([0.1 * prompt * factor for prompt, factor in zip(prompts, [1.1, 1.2] * 3, strict=True)])
    found = against(taken, candidate(0.0, 1, 1), other)
    assert 1.1 < found.slower_low < found.slower < found.slower_high < 1.25
    same = against(taken, candidate(0.0, 1, 1), taken)
    assert (same.slower, same.slower_low, same.slower_high) == (1.0, 1.0, 1.0)


def speed(seconds: list[float]) -> Speed:
    return Speed(1.0, 1.0, 1.0, 2.0, tuple(seconds))


class FakeSession:
    """Takes a second for a token, a half with drafts; the first request is ten times as slow."""

    def __init__(self, name: PrecisionPair, log: list[Any]) -> None:
        self.name, self.log, self.requests = name, log, 0

    def reset(self) -> None:
        self.log.append("reset")

    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, stop_token_ids: tuple[int, ...], speculate: bool
    ) -> Any:
        self.log.append((self.name, speculate, prompt[0]))
        self.requests += 1
        slow = 10 if self.requests == 1 else 1
        seconds = slow * max_new_tokens * (0.5 if speculate else 1.0) * prompt[0]
        statistics = Statistics(
            prefill_seconds=3.0, total_seconds=3.0 + seconds, emitted=max_new_tokens, rounds=max_new_tokens // 2
        )
        statistics.accepted_by_position = [max_new_tokens // 2] if speculate else []
        return SimpleNamespace(statistics=statistics)


def test_every_prompt_by_all_in_turn_behind_a_warm_up() -> None:
    log: list[Any] = []
    pairs = [PrecisionPair("int8", "int4"), PrecisionPair("int8", "int8"), PrecisionPair("float", "int4")]
    sessions = {pair: cast(Session, FakeSession(pair, log)) for pair in pairs}
    steps: list[str] = []
    found = measure_speeds(sessions, [[1], [2]], 8, steps.append)
    plans = [*((pair, True) for pair in pairs), (pairs[2], False), (pairs[0], False)]
    calls = [entry for entry in log if entry != "reset"]
    assert [call[2] for call in calls] == [1] * 5 + [1] * 5 + [2] * 5
    assert [call[:2] for call in calls[:5]] == plans
    assert log.count("reset") == 15  # nobody finds another's prefix in the cache
    assert steps == ["warm up", "prompt 1 of 2", "prompt 2 of 2"]
    assert set(found) == set(plans)
    drafts = found[pairs[1], True]
    assert (drafts.tokens_per_second, drafts.low, drafts.high) == (pytest.approx(16 / 12), 1.0, 2.0)  # prefill left out
    assert drafts.acceptance_length == 2.0
    assert drafts.seconds == pytest.approx((0.5, 1.0))
    assert found[pairs[0], False].tokens_per_second == pytest.approx(16 / 24)
