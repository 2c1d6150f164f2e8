"""benchmarks/routing.py, and the replay that decides at a calibration: by the schedule of a session."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.calibration.measuring.routed_replay import Priced, Runs, _Request, aligned, replay_routed
from specexport.calibration.measuring.trace_replay import plain_seconds
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.verdicts.routing import Stream, known, routed, unrouted
from specexport.runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from policy_replay import costs
from routing import MOST, behind_lookups, specialists, told

ROUTES = ("a", "b")
PRICES = Priced(costs(0.12, 1.4, MOST))
AT = cached(PRICES.costs)


def stream(count: int, length: int = 96) -> Stream:
    """Requests of both routes, whose own draft is right four times in five, and the other one seldom."""
    draw, found = random.Random(2), []
    for line in range(count):
        tokens = tuple(draw.randrange(1000) for _ in range(20 + length))
        agrees = tuple(draw.random() < 0.8 for _ in range(length))
        trace = Trace(line, ROUTES[line // 2 % 2], 20, tokens, agrees, length)
        found.append(specialists(trace, ROUTES, 0.3, draw))
    return Stream(found, dict.fromkeys(ROUTES, PRICES))


def test_a_specialist_is_right_where_the_recorded_draft_is() -> None:
    trace = Trace(1, "a", 1, (1, 2, 3, 4), (True, None, False), 3)
    found = specialists(trace, ROUTES, 0.0, random.Random(1))
    assert found["a"].agrees == (True, None, False)
    assert found["b"].agrees == (False, None, False)


def test_what_is_known_of_a_route() -> None:
    found = known(stream(16), 1000)
    assert set(found.routes) == set(ROUTES)
    for route in ROUTES:
        drafters = found.routes[route].drafters
        assert max(drafters, key=lambda name: drafters[name].speedup) == route
        assert drafters[route].chances[0] == pytest.approx(0.8, abs=0.1)
        assert found.routes[route].total == 8 * 20  # of the prompts alone
    assert not known(stream(16), 0).routes["a"].tokens


def test_a_mixed_stream_is_faster_than_with_the_best_draft_alone() -> None:
    requests = stream(40)
    seconds, choices = routed(requests, 0)
    assert 1.05 * sum(seconds) < min(map(sum, unrouted(requests).values()))
    assert sum(seconds) < sum(plain_seconds(trace, AT) for trace in requests.traces("a"))
    last = [chosen[-1] == runs["a"].route for runs, chosen in zip(requests.requests, choices, strict=True)]
    assert sum(last) > 0.9 * len(last)
    assert len(told(requests, 1000)) == 3


def test_a_second_draft_would_read_the_prompt_and_what_was_written_without_it() -> None:
    """Of two equal drafts the first to draft goes on where that is dear, and is as fast as one alone."""
    dear = Priced(replace(PRICES.costs, draft_prefill=5.0))
    same = [dict.fromkeys(ROUTES, runs["a"]) for runs in stream(8).requests]
    of_one = unrouted(Stream(same, {"a": dear}))["a"]
    both = dict.fromkeys(ROUTES, dear)
    found = known(Stream(same, both), 0)
    seconds, choices = replay_routed(same, lambda number: found, both)
    assert all(set(chosen) == {"a"} for chosen in choices)
    assert sum(seconds) == pytest.approx(sum(of_one), rel=0.02)  # but for what they start from


def test_every_second_request_of_a_route_is_of_the_other_half() -> None:
    requests = stream(16)
    in_turn = Stream([requests.requests[n] for n in (0, 2, 1, 3, 4, 6, 5, 7)], requests.drafters)
    assert [runs["a"].route for runs in in_turn.requests] == list("abababab")
    assert in_turn.sides() == [0, 0, 1, 1] * 2
    assert all(set(half.routes()) == set(ROUTES) for half in in_turn.halves())


class Turns:
    """In place of a `RoutedSchedule`: the drafters in turn, two tokens each."""

    def __init__(self) -> None:
        self.drafter = ""

    def plan(self, sequence: SequenceState) -> RoundPlan:
        if not self.drafter:
            assert {sequence.missing_rows(name) for name in ROUTES} == {21}  # the prompt
        self.drafter = "b" if self.drafter == "a" else "a"
        return RoundPlan(2, self.drafter)

    def observe(self, outcome: RoundOutcome) -> None:
        pass


def test_a_draft_catches_up_with_what_others_drafted() -> None:
    """The first has read the prompt with whoever drafts alone, the second reads it behind the first round."""
    trace = Trace(0, "a", 20, tuple(range(32)), (True,) * 12, 12)
    request = _Request(dict.fromkeys(ROUTES, trace), dict.fromkeys(ROUTES, ()), dict.fromkeys(ROUTES, PRICES),
                       dict.fromkeys(ROUTES, AT))  # fmt: skip
    assert request.run(Turns()) == list("abab")  # type: ignore[arg-type]
    rounds = 4 * AT(20).rounds[2]
    behind = (20 + 3) + 3 + 3  # of b; of a, while b drafted; and of b again
    assert request.seconds == pytest.approx(rounds + behind * PRICES.costs.draft_prefill)


def test_who_drafts_a_round_depends_on_nothing_behind_its_place() -> None:
    requests = stream(8)
    halves, sides = [known(half, 0) for half in requests.halves()], requests.sides()

    def choices(found: list[Runs]) -> list[list[str]]:
        return replay_routed(found, lambda number: halves[1 - sides[number]], requests.drafters)[1]

    before = choices(list(requests.requests))
    for number, runs in enumerate(requests.requests):
        kept = 40
        changed = {
            draft: replace(trace, agrees=trace.agrees[:kept] + tuple(not right for right in trace.agrees[kept:]))
            for draft, trace in runs.items()
        }
        after = choices([*requests.requests[:number], changed])
        rounds = kept // (MOST + 1)  # that end before the change, at least
        assert after[number][:rounds] == before[number][:rounds]
        assert after[:number] == before[:number]


def test_runs_of_other_lengths_are_cut_to_the_shortest() -> None:
    long = Trace(1, "a", 2, (1, 2, 3, 4, 5), (True, None, False), 3)
    short = Trace(1, "a", 2, (1, 2, 9, 8), (True, False), 3)
    found = aligned({"a": long, "b": short})
    assert [trace.tokens for trace in found.values()] == [(1, 2, 3, 4), (1, 2, 9, 8)]
    assert found["a"].agrees == (True, None)
    assert list(behind_lookups([found], "ngram+")[0]) == ["ngram+a", "ngram+b"]
