from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from specexport.calibration.bench.results import Bench, BenchOptions
from specexport.calibration.bench.table import render, summarize
from support.bench_runs import pair, run


def test_the_table_says_what_was_found() -> None:
    pairs = [pair(number, run(8.0 + number), run(4.0), "code") for number in range(12)]
    alone = [pair(12, run(3.0), run(4.0), "alone")]
    routes = (summarize("code", pairs), summarize("alone", alone))
    result = Bench("x.bundle", "fake", "a host", BenchOptions(num_draft_tokens=2), routes, None, (*pairs, *alone))
    text = render(result)
    lines = text.splitlines()
    assert lines[0].startswith("x.bundle on fake, greedy, ")
    assert lines[1] == "a host"
    low, high = routes[0].speedup.low, routes[0].speedup.high
    code, single = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(f"| {name} ")]
        for name in ("code", "alone")
    )
    quantiles = ["2.27x", "3.38x", "4.47x", "4.72x"]
    assert code[0] == ["code", "12", "3.38x", f"{low:.2f} to {high:.2f}", *quantiles, "0 %", "2.90x"]
    assert single[0] == ["alone", "1", "0.75x", "unknown", *["0.75x"] * 4, "100 %", "0.80x"]
    assert code[1][:2] == ["code", "plain"]
    assert single[2] == ["alone", "speculative", *["400.0"] * 4, *["1500.0"] * 2]
    words = " ".join(text.split())
    for figure in ("2.00 tokens", "100 %, 0 %", "draft 25 %, target 50 %, host 25 %"):
        assert figure in words
    assert [int(number) for number in re.findall(r"\d+", lines[-1])] == [13, 0, 0]


def test_who_drafted_is_said_by_route() -> None:
    ways = ({"ngram": 2}, {"draft": 3, "ngram": 1}, {})
    pairs = [pair(number, run(8.0), run(4.0, rounds_by_drafter=way)) for number, way in enumerate(ways)]
    found = summarize("mixed", pairs), summarize("off", pairs[2:])
    assert [one.rounds_by_drafter for one in found] == [{"ngram": 3, "draft": 3}, {}]
    for drafter, named in (None, "drafter chosen by the session"), ("model", "drafter model"):
        text = render(Bench("x.bundle", "fake", "a host", BenchOptions(drafter=drafter), found, None, tuple(pairs)))
        assert f", {named}, " in text.splitlines()[0]
        mixed, off = (line for line in text.splitlines() if line.startswith("- "))
        assert "; drafted by ngram in 3, draft in 3 of 15 rounds; " in mixed
        assert "drafted by" not in off


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "k by the policy, drafter by the policy"),
        ({"num_draft_tokens": 2}, "2 draft tokens per round, drafter by the policy"),
        ({"drafter": "ngram"}, "k chosen by the session, drafter ngram"),
    ],
)
def test_what_the_policy_decides(options: dict[str, Any], told: str) -> None:
    pairs = (pair(0, run(8.0), run(4.0)),)
    routes = (summarize("r", pairs),)
    text = render(Bench("x.bundle", "fake", "a host", BenchOptions(**options), routes, None, pairs, True))
    assert f", {told}, " in text.splitlines()[0]


def test_the_speedup_is_of_the_sums() -> None:
    found = summarize("r", [pair(0, run(8.0), run(2.0)), pair(1, run(2.0), run(3.0))])
    assert found.speedup.value == 2.0  # 10 / 5; the mean of the requests' own is 2.33
    assert found.speedups.p50 == pytest.approx((4 + 2 / 3) / 2)
    assert found.slower == 0.5
    assert found.whole_request.value == pytest.approx(12 / 7)
    assert found.speedup.low < 2 < found.speedup.high


def test_lengths_that_differ_are_made_equal() -> None:
    """4 s for 4 tokens against 5 s for 10: 1 s a token against half of that."""
    found = summarize("r", [pair(0, run(4.0, emitted=4), run(5.0, emitted=10))])
    assert found.speedup.value == 2.0
    assert found.speedups.p50 == 2.0
    assert found.whole_request.value == pytest.approx((1 + 10) / (1 + 5))
    assert found.latency_plain.p50 == 1.0
    assert found.latency_speculative.p50 == 0.5
    assert (found.emitted, found.prompt_tokens) == (10, 7)


def test_repeats_are_one_request() -> None:
    """They make its times better known, and do not pass for more requests."""
    once = [pair(number, run(8.0 + number), run(4.0)) for number in range(3)]
    twice = [*once, *(replace(one, repeat=1) for one in once)]
    first, second = summarize("r", once), summarize("r", twice)
    assert second.requests == first.requests == 3
    assert second.speedup.low == pytest.approx(first.speedup.low)
    assert second.speedup.high == pytest.approx(first.speedup.high)
    assert second.latency_plain == first.latency_plain
    assert second.tokens_per_round == first.tokens_per_round
    assert second.equal == 6
    noisy = [pair(0, run(9.0), run(4.0)), pair(0, run(7.0), run(4.0), repeat=1)]
    assert summarize("r", noisy).speedups.p10 == 2.0


def test_counts_of_a_route() -> None:
    counts = dict(drafted_by_position=(4, 3, 1), accepted_by_position=(2, 1, 1))
    more = dict(drafted_by_position=(6,), accepted_by_position=(1,))
    pairs = [
        pair(0, run(8.0), run(2.0, emitted=7, rounds=4, **counts)),
        pair(1, run(8.0), run(2.0, emitted=8, rounds=6, **more), outputs="near tie"),
        pair(2, run(8.0), run(4.0, emitted=5, rounds=5), outputs="different"),
    ]
    found = summarize("r", pairs)
    assert found.tokens_per_round == 20 / 15
    assert found.acceptance == ((2 + 1 + 5) / (4 + 6 + 5), 1 / 8, 1.0)
    assert (found.draft_share, found.target_share, found.device_share, found.host_share) == (0.25, 0.5, 0.0, 0.25)
    assert (found.equal, found.near_ties, found.different, found.not_comparable) == (1, 1, 1, 0)
    assert (found.requests, found.rounds, found.emitted) == (3, 15, 20)


def test_quantiles_are_over_requests() -> None:
    pairs = [
        pair(number, run(10.0 + number, first=number + 1.0), run(20.0, first=2.0 * number)) for number in range(11)
    ]
    found = summarize("r", pairs)
    assert (found.latency_plain.p10, found.latency_plain.p50, found.latency_plain.p90) == (1.1, 1.5, 1.9)
    assert found.latency_speculative.p10 == found.latency_speculative.p99 == 2.0
    assert (found.first_token_plain.p50, found.first_token_speculative.p50) == (6.0, 10.0)
    assert (found.speedups.p10, found.speedups.p90) == (0.55, 0.95)
    assert found.slower == 10 / 11
