from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from specexport.bundle import Format
from specexport.bundle.auto_precision import PrecisionCandidate, PrecisionTable, table_lines
from specexport.exporter import precision_search
from specexport.exporter.precision_search import (
    PROMPTS,
    PrecisionPair,
    Speed,
    Speeds,
    is_close,
    measure_speeds,
    slower,
    spread,
)
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics


def candidate(loss: float, plain: float, speculative: float) -> PrecisionCandidate:
    return PrecisionCandidate("int8", "int4", 1, 0.0, loss, plain, speculative, 0.0, 0.0, 2.0, 1.0, 1.0, 1.0)


EXACT, GOOD, BAD = PrecisionPair("float", "int8"), PrecisionPair("int8", "int4"), PrecisionPair("int4", None)
MOVED: dict[Format, float] = {"float": 0.0, "int8": 0.01, "int4": 0.011}


def test_a_call_is_close_where_one_that_may_be_taken_may_be_as_fast() -> None:
    taken = [1.0, 2.0, 1.5, 1.2] * 3
    even = [second * factor for second, factor in zip(taken, [0.9, 1.2] * 6, strict=True)]
    slow = [second * factor for second, factor in zip(taken, [1.4, 1.6] * 6, strict=True)]
    of = {"taken": of_rate(30, taken), "even": of_rate(29, even), "slow": of_rate(20, slow)}
    assert is_close({(GOOD, True): of["taken"], (EXACT, True): of["even"]}, MOVED, 0.01)
    assert not is_close({(GOOD, True): of["taken"], (EXACT, True): of["slow"]}, MOVED, 0.01)
    assert not is_close({(GOOD, True): of["taken"], (BAD, True): of["even"]}, MOVED, 0.01)  # moves too far
    plain = {(GOOD, True): of["taken"], (EXACT, True): of["slow"], (EXACT, False): of["even"]}
    assert not is_close(plain, MOVED, 0.01)
    assert not is_close({(GOOD, True): of["taken"]}, MOVED, 0.01)


def of_rate(rate: float, seconds: Sequence[float] = (1.0, 1.0)) -> Speed:
    return Speed(rate, rate, rate, 2.0, tuple(seconds))


@pytest.mark.parametrize(("plain", "told"), [(90.0, True), (20.0, False)])
def test_the_table_says_what_is_faster_without_drafts_and_what_is_missing(plain: float, told: bool) -> None:
    taken, far = candidate(0.0, 25, 30), replace(candidate(0.03, 99, 10), draft="int8")
    other = replace(candidate(0.0, plain, 10), target="float", draft="float")
    table = PrecisionTable("here", 0.02, 1, 1, taken.target, taken.draft, (taken, far, other), ("draft in int4: off",))
    lines = list(table_lines(table))
    assert [line.endswith("  <- taken") for line in lines[2:5]] == [True, False, False]
    assert [line.endswith("  moves too far") for line in lines[2:5]] == [False, True, False]
    assert lines[4].split()[:3] == ["fp32", "+", "fp32"]
    assert any("without drafts: the target in fp32, 90.0 tokens/s" in line for line in lines) == told
    assert lines[-1].strip() == "left out: draft in int4: off"


def test_times_are_held_against_the_pair_taken_prompt_by_prompt() -> None:
    """Prompts differ far more than pairs: unpaired, nothing could be told apart."""
    prompts = [1.0, 10.0, 2.0, 20.0, 5.0, 9.0]
    taken = speed([0.1 * prompt for prompt in prompts])
    other = speed([0.1 * prompt * factor for prompt, factor in zip(prompts, [1.1, 1.2] * 3, strict=True)])
    found = slower(other, taken)
    assert 1.1 < found.low < found.value < found.high < 1.25
    same = slower(taken, taken)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)


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


@pytest.mark.parametrize("count", [1, 3, 11, 12, 13, 47, 48, 49, 60, 95, 96, 1000])
def test_prompts_are_of_the_whole_file_however_few_are_run(count: int) -> None:
    items = [f"{number}" for number in range(count)]
    taken = spread(items, 48)
    assert len(set(taken)) == len(taken) == min(count, 48)
    for few in (taken[:PROMPTS], taken):
        places = sorted([-1, *map(int, few), count])
        # no stretch of the file is left out that holds more than two evenly spread ones would leave between them
        assert max(later - earlier for earlier, later in pairwise(places)) <= 2 * -(-count // len(few))


def test_a_close_call_is_given_more_prompts_until_it_is_settled_or_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_search, "PROMPTS", 2)
    monkeypatch.setattr(precision_search, "MORE_SECONDS", 1e9)
    pair = PrecisionPair("int8", "int4")
    prompts = [[number + 1] for number in range(9)]

    def counted(settled_at: int) -> int:
        seen: list[int] = []

        def undecided(speeds: Speeds) -> bool:
            seen.append(len(speeds[pair, True].seconds))
            return seen[-1] < settled_at

        session = cast(Session, FakeSession(pair, []))
        found = measure_speeds({pair: session}, prompts, 8, lambda step: None, undecided)
        assert seen == list(range(2, 2 * len(seen) + 1, 2))
        return len(found[pair, True].seconds)

    assert counted(0) == 2
    assert counted(5) == 6
    assert counted(100) == 9
    # Prompts take 18, 30, 42, 54 seconds: the third at the mean of two ends at 24, a fourth at 42 + 30.
    monkeypatch.setattr(precision_search, "MORE_SECONDS", 60.0)
    assert counted(100) == 3
    monkeypatch.setattr(precision_search, "MORE_SECONDS", 20.0)
    assert counted(100) == 2
