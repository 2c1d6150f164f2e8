from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from specexport.calibration.measuring.replay import ReplayedRound, plain_seconds, replay_fixed
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.statistics.results import DraftCandidate, Interval
from specexport.calibration.verdicts import verdict
from specexport.calibration.verdicts.verdict import (
    Criteria,
    Replayed,
    best,
    decide,
    doubted,
    in_words,
    judge,
    missing,
    replay_adaptive,
    replay_candidates,
    sides_of,
)
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.routes import Evidence, RoutePolicy
from support.costs import costs_at, flat_point, time


def START(drafter: str) -> tuple[float, ...]:  # noqa: N802
    return (0.5,) * 3


FIXED, ADAPTIVE = Criteria(("model",), 0.9, "fixed"), Criteria(("model",), 0.9, "adaptive")


def costs(draft: float = 0.1, row: float = 0.0, host: float = 0.0, most: int = 3) -> Costs:
    """Plain rounds have no part of the host's."""
    point = flat_point(draft, row, host, most)
    return costs_at(replace(point, rounds=(time(1), *point.rounds[1:]), host=(time(0), *point.host[1:])))


def trace(agrees: str, line: int = 1) -> Trace:
    """A word of + and -, one an output token."""
    tokens = tuple(range(2 + len(agrees)))
    return Trace(line, "code", 2, tokens, tuple(sign == "+" for sign in agrees), len(agrees))


def candidate(
    low: float, value: float, high: float, p10: float = 1.0, drafter: str = "model", k: int = 2
) -> DraftCandidate:
    return DraftCandidate(drafter, k, 2.0, 2.0 / value, Interval(value, low, high), p10, 0.0)


def test_the_rule_charges_every_pass() -> None:
    """Twelve tokens in rounds of ++-: four rounds of two draft passes and a wide pass, against twelve plain rounds."""
    found = replay_candidates([trace("++-" * 4)], costs(draft=0.3, row=0.1, host=0.05), ["model"])
    two = next(one.candidate for one in found if one.candidate.num_draft_tokens == 2)
    assert two.acceptance_length == pytest.approx(3.0)
    assert two.break_even == pytest.approx(2 * 0.3 + 1.2 + 0.05)
    assert two.speedup.value == pytest.approx(3.0 / 1.85)
    assert [one.candidate.num_draft_tokens for one in found] == [1, 2, 3]
    assert two.slower == 0.0
    assert found[0].speedups == pytest.approx([found[0].candidate.speedup.value])
    at = costs(draft=0.3, row=0.1, host=0.05).at
    assert ReplayedRound(20, 2, 2, 0).seconds(at) == pytest.approx(1.2 + 0.05)  # looked up, so without passes


def judged(one: DraftCandidate, requests: int, speedups: tuple[float, ...] | None = None) -> Replayed:
    return Replayed(one, speedups or (one.p10,) * requests, (1.0 / one.speedup.value,) * requests, (1.0,) * requests)


@pytest.mark.parametrize(
    ("one", "requests", "verdict"),
    [
        (candidate(1.1, 1.3, 1.5), 20, "on"),
        (candidate(1.1, 1.3, 1.5), 19, "undecided"),
        (candidate(0.99, 1.3, 1.5), 500, "undecided"),
        (candidate(1.0, 1.3, 1.5), 500, "undecided"),
        (candidate(1.1, 1.3, 1.5, p10=0.9), 500, "on"),
        (candidate(1.1, 1.3, 1.5, p10=0.89), 500, "off"),  # all of the requests are below the floor
        (candidate(0.6, 0.8, 0.99), 20, "off"),
        (candidate(0.6, 0.8, 1.0), 500, "undecided"),
        (candidate(0.6, 0.8, 0.99), 19, "undecided"),
    ],
)
def test_verdicts(one: DraftCandidate, requests: int, verdict: str) -> None:
    assert judge(judged(one, requests), 0.9) == verdict


def test_a_slowest_tenth_that_may_yet_reach_the_floor_is_not_refuted() -> None:
    """Of 100 requests the tenth percentile lies below the 17th smallest with 97.5 %."""
    one = candidate(1.1, 1.3, 1.5, p10=0.8)
    assert judge(judged(one, 100, (0.8,) * 16 + (1.5,) * 84), 0.9) == "undecided"
    assert judge(judged(one, 100, (0.8,) * 17 + (1.5,) * 83), 0.9) == "off"
    assert missing(judged(one, 100, (0.8,) * 16 + (1.5,) * 84), 0.9) == 100


def test_short_responses_are_not_the_slowest_tenth() -> None:
    """A response of one token takes a round, with a draft or without; it still counts in the ratio of sums."""
    traces = [trace("-", line) for line in range(10)] + [trace("++-" * 4, 10 + line) for line in range(10)]
    found = next(one for one in replay_candidates(traces, costs(), ["model"]) if one.candidate.num_draft_tokens == 2)
    assert len(found.speedups) == 10
    assert found.candidate.p10 == pytest.approx(12 / (4 * 1.2))
    assert found.candidate.speedup.value < found.candidate.p10
    assert len(replay_candidates(traces[:10], costs(), ["model"])[0].speedups) == 10  # where there are no others


def test_another_drafter_must_be_clearly_better() -> None:
    def replayed(value: float, drafter: str, k: int = 2) -> Replayed:
        return Replayed(candidate(1.0, value, 3.0, drafter=drafter, k=k), (), (1 / value,) * 2, (1.0,) * 2)

    rows = [replayed(1.5, "model"), replayed(1.6, "model", 3), replayed(1.62, "ngram"), replayed(1.7, "ngram+model")]
    assert best(rows[:3], ("model", "ngram")).candidate.num_draft_tokens == 3
    assert best(rows, ("model", "ngram", "ngram+model")).candidate.drafter == "ngram+model"
    assert best(rows, ("model", "ngram")).candidate.drafter == "model"
    assert best(rows, ("ngram", "model")).candidate.drafter == "ngram"


@pytest.mark.parametrize(
    ("seconds", "sure"), [((0.5,), False), ((0.5, 0.7), False), ((0.6, 0.61), True), ((0.5, 0.7) * 4, True)]
)
def test_another_drafter_must_be_surely_faster(seconds: tuple[float, ...], sure: bool) -> None:
    """Of one request or two that differ, nobody knows. The other's answers are twice as long, which changes nothing."""
    twice = (2.0).__mul__
    drafters, speedup = ("model", "ngram"), len(seconds) / sum(seconds)
    rows = [
        Replayed(candidate(1.0, 1.0, 3.0), (), (1.0,) * len(seconds), (1.0,) * len(seconds)),
        Replayed(candidate(1.0, speedup, 3.0, drafter="ngram"), (), tuple(map(twice, seconds)), (2.0,) * len(seconds)),
    ]
    assert best(rows, drafters).candidate.drafter == drafters[sure]
    said = doubted(rows, drafters)
    assert (said == "") == sure
    assert sure or all(fact in said for fact in ("model stays", "ngram", f"{speedup:.2f}x"))


def test_the_entry_off_drafts_nothing_and_says_why() -> None:
    traces = [trace("-+--" * 4, line) for line in range(30)]
    policy, chosen = decide(replay_candidates(traces, costs(draft=2.0), ["model"]), FIXED, START)
    assert (policy.verdict, policy.num_draft_tokens, policy.mode) == ("off", 0, "fixed")
    assert policy.evidence is not None
    assert policy.evidence.requests == 30
    assert policy.evidence.speedup == pytest.approx(chosen.candidate.speedup.value, abs=1e-4)


def test_costs_are_those_of_the_place_in_the_sequence() -> None:
    table = costs_at(flat_point(0.2, 0.1, most=3), flat_point(0.2, 0.1, most=3, context=512).scaled(10.0))
    short = Trace(1, "code", 16, tuple(range(26)), (True,) * 10, 10)
    long = Trace(1, "code", 512, tuple(range(522)), (True,) * 10, 10)
    prices = cached(table)
    assert plain_seconds(short, prices) == pytest.approx(10, rel=0.05)
    assert plain_seconds(long, prices) == pytest.approx(100, rel=0.05)
    for one, scale in ((short, 1), (long, 10)):
        assert sum(r.seconds(prices) for r in replay_fixed(one, "model", 1)) == pytest.approx(5 * 1.3 * scale, rel=0.05)


def test_a_model_behind_lookups_pays_for_what_it_missed() -> None:
    """The text repeats itself, then not: after looked-up rounds the draft has their rows to read."""
    tokens = (1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 90, 91, 92, 93)
    one = Trace(1, "code", 10, tokens, (True,) * 6, 6)
    rounds = list(replay_fixed(one, "ngram+model", 3))
    assert [r.passes > 0 for r in rounds] == [False, True]
    assert [r.missing_rows for r in rounds] == [0, 3]
    table = cached(replace(costs(), draft_prefill=0.5))
    free = cached(costs())
    assert rounds[1].seconds(table) == pytest.approx(rounds[1].seconds(free) + 3 * 0.5)


def test_off_by_the_floor_is_plain_and_off_by_the_speedup_keeps_watching() -> None:
    slow = [trace("++-" * 30, line) for line in range(30)] + [trace("-" * 12, 40 + line) for line in range(30)]
    policy, _ = decide(replay_candidates(slow, costs(draft=0.3), ["model"]), ADAPTIVE, START)
    assert policy.evidence is not None
    assert policy.evidence.low > 1
    assert (policy.verdict, policy.mode) == ("off", "fixed")
    bad = [trace("-" * 20, line) for line in range(30)]
    policy, _ = decide(replay_candidates(bad, costs(draft=0.3), ["model"]), ADAPTIVE, START)
    assert (policy.verdict, policy.mode) == ("off", "adaptive")


def test_a_route_where_adapting_comes_back_to_plain_is_off_and_keeps_watching() -> None:
    fixed, adapting = judged(candidate(0.6, 0.8, 0.95), 30), judged(candidate(0.98, 1.0, 1.01, p10=0.99), 30)
    policy, chosen = decide([fixed], ADAPTIVE, START, [adapting])
    assert (policy.verdict, policy.mode) == ("off", "adaptive")
    words = in_words(policy, chosen.candidate, 0, 0.9)
    assert "every fixed number" in words
    assert "floor" not in words


@pytest.mark.parametrize(
    ("requests", "low", "mode", "drafted", "words"),
    [
        (19, 1.1, "adaptive", 2, "Faster on these requests: 1.20x expected (1.10 to 1.50), p10 1.00x. 1 more request "),
        (
            19,
            0.9,
            "adaptive",
            2,
            "A verdict needs 20 or more requests with answers of 8 tokens or more and has 19; meanwhile ",
        ),
        (20, 1.1, "adaptive", 2, "P10 is near the floor; meanwhile 2 draft tokens by model, 1.20x "),
        (20, 0.9, "adaptive", 0, "The interval includes 1; meanwhile 2 draft tokens by model, 1.20x "),
        (20, 0.9, "fixed", 0, "The interval includes 1; meanwhile plain decoding; the best setting is 2 draft tokens"),
    ],
)
def test_what_is_undecided_says_why_and_what_runs_meanwhile(
    requests: int, low: float, mode: Any, drafted: int, words: str
) -> None:
    evidence = Evidence(requests, 2.0, 1.5, 1.2, low, 1.5, 0.9)
    policy = RoutePolicy("undecided", "model", drafted, mode, (0.5,), evidence)
    found = in_words(policy, candidate(low, 1.2, 1.5), 1, 0.9)
    assert found.startswith(words)
    few = low > 1 and requests < 20
    assert found.endswith("meanwhile 2 draft tokens by model." if few else "decide.")


def test_half_of_each_route_tells_what_the_other_half_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of routes that come in turn too: none starts from another one's chances."""
    assert sides_of(list("ababaab")) == [0, 0, 1, 1, 0, 1, 0]
    ways = (("+" * 8, "good"), ("-" * 8, "bad"))
    traces = [replace(trace(signs, line), route=route) for line in range(8) for signs, route in ways]
    started: list[tuple[float, ...]] = []
    real = verdict.adaptive_seconds

    def noted(*given: Any) -> Any:
        started.extend(given[3])
        return real(*given)

    monkeypatch.setattr(verdict, "adaptive_seconds", noted)
    replay_adaptive(traces, costs(), ("model",), None)
    assert len(started) == 16
    assert all(0.15 < chances[0] < 0.6 for chances in started)


def test_no_request_starts_from_its_own_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The good requests start from what the bad ones gave, and the other way round."""
    traces = [trace(("+-"[line % 2]) * 20, line) for line in range(8)]
    starts: list[tuple[float, ...]] = []
    real = verdict.adaptive_seconds

    def noted(*given: Any) -> Any:
        starts.extend(given[3])
        return real(*given)

    monkeypatch.setattr(verdict, "adaptive_seconds", noted)
    replay_adaptive(traces, costs(), ("model",), None)
    assert [start[0] > 0.5 for start in starts] == [False, True] * 4
    assert all(0 < start[0] < 1 for start in starts)  # what was always right, or never, may change


def test_half_the_interval_takes_four_times_the_requests() -> None:
    one = candidate(0.9, 1.1, 1.3)
    assert missing(judged(one, 100, (1.1,) * 100), 0.9) == 300
