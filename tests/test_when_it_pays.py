"""Every number of docs/when-it-pays.md, recomputed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist

import pytest
from specexport.calibration.reporting.sections import CLOSE
from specexport.calibration.statistics.sample_size import FEW, USUAL, quantile_ranks
from specexport.calibration.verdicts.verdict import BETTER_BY, LEAST_REQUESTS, SHORTEST_RESPONSE

TEXT = " ".join(
    (Path(__file__).resolve().parent.parent / "docs" / "when-it-pays.md").read_text(encoding="utf-8").split()
)

# The example.
T1, D, H, K, A = 10.0, 1.5, 0.3, 4, 2.6
V = {5: 11.0, 6: 11.2}


def break_even(k: int, drafts: int | None = None) -> float:
    return ((k if drafts is None else drafts) * D + V[k + 1] + H) / T1


def tau(alpha: float, k: int) -> float:
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def expected_largest(number: int) -> float:
    """Of so many standard normal draws."""
    normal, step = NormalDist(), 1e-3
    places = (index * step for index in range(-8000, 8000))
    return sum(x * number * normal.pdf(x) * normal.cdf(x) ** (number - 1) * step for x in places)


LAMBDA = A / (T1 * break_even(K))
FIFTH, STEP = D + V[6] - V[5], D + 14.0 - V[5]
REQUESTS = [1.6] * 8 + [0.7] * 2
NARROW = math.sqrt(1 + 99 * 0.1)
LIKE_ALPHA = round((tau(0.8, 5) - 1) / 5, 2)

# What the text says, with the digits it says it with, and where it comes from.
FACTS = [
    ("t1 = {:.0f} ms, d = 1.5 ms, v(5) = 11 ms, h = 0.3 ms. For k = 4", T1),
    ("the break-even is (4 x 1.5 + 11 + 0.3) / 10 = {:.2f} tokens a round", break_even(4)),
    ("A route that gives 2.6 runs at {:.2f}x", A / break_even(4)),
    ("gives 1 and runs at {:.2f}x", 1 / break_even(4)),
    ("Looked up instead of drafted, the same round needs {:.2f}", break_even(4, drafts=0)),
    ("A route at 1.04x, give or take 0.06 with 50 requests, needs about {:.0f} for", math.ceil(50 * (0.06 / 0.04) ** 2)),
    ("leave 1 behind: {:.0f} more", math.ceil(50 * (0.06 / 0.04) ** 2) - 50),
    ("With 100 rounds a request and a correlation of 0.1 between rounds of the same request, the interval comes out {:.1f} times", NARROW),
    ("says 95 % and holds the truth {:.0f} % of the time", 100 * (2 * NormalDist().cdf(1.96 / NARROW) - 1)),
    ("Intervals by token.** See above: {:.1f} times too narrow", NARROW),
    ("differ by more than {:.0f} %", 100 * CLOSE),
    ("Within {:.0f} %, the model", 100 * CLOSE),
    ("lambda is 2.6 / 17.3 = {:.2f} tokens a millisecond", LAMBDA),
    ("If v(6) is 11.2 ms, the fifth token costs {:.1f} ms", FIFTH),
    ("worth it from a survival of {:.2f} on", LAMBDA * FIFTH),
    ("6 tokens need a pass of 14 ms, it costs {:.1f} ms", STEP),
    ("has to survive with {:.2f}.", LAMBDA * STEP),
    ("With one, the example's break-even is {:.2f}", break_even(4, drafts=1)),
    ("instead of {:.2f}, and", break_even(4)),
    (" {:.2f}x is announced as", A / break_even(4)),
    ("announced as {:.2f}x", A / break_even(4, drafts=1)),
    ("has {:.1f} tokens accepted a round, so a = 2.6", A - 1),
    ("Forgotten, S is {:.2f}", (A - 1) / break_even(4)),
    ("counted twice, S is {:.2f}", (A + 1) / break_even(4)),
    ("With alpha = 0.8 and k = 5 that is {:.2f}", tau(0.8, 5)),
    ("not 1 + 5 x 0.8 = {:.0f}", 1 + 5 * 0.8),
    ("Of the five draft tokens {:.2f} are accepted", tau(0.8, 5) - 1),
    ("which is {:.2f} of them", (tau(0.8, 5) - 1) / 5),
    ("Put {:.2f} back", LIKE_ALPHA),
    ("as if it were alpha and it says {:.2f}", tau(LIKE_ALPHA, 5)),
    ("with c = {:.2f}, 2.11x", D / T1),
    ("with c = 0.15, {:.2f}x", tau(0.8, 5) / (5 * D / T1 + 1)),
    ("With v(6) = 11.2 ms and h = 0.3 ms charged it is {:.2f}x", tau(0.8, 5) / break_even(5)),
    ("A pair with a = 3.76 and a* = 3.67 should have run at {:.2f}x, and measured 0.93x", 3.76 / 3.67),
    ("a* must have been {:.2f}", 3.76 / 0.93),
    ("so {:.2f} plain rounds went by", 3.76 / 0.93 - 3.67),
    ("Eight requests at 1.6x and two at 0.7x have a mean speedup of {:.2f}x", sum(REQUESTS) / 10),
    ("their total time improves by {:.2f}x", 10 / sum(1 / speedup for speedup in REQUESTS)),
    ("The slowest tenth sees {:.1f}x", sorted(REQUESTS)[1]),
    ("and {:.0f} % of the requests are slower", 100 * sum(speedup < 1 for speedup in REQUESTS) / 10),
    ("15 % slower: a true 1.10x shows as {:.2f}x", 1.10 / 1.15),
    ("Of eight settings that all run at exactly 1.00x, estimated with a standard error of 0.03", 8),
    ("the best is expected to look like {:.2f}x", 1 + 0.03 * expected_largest(8)),
    ("With 500 requests the 95 % interval of the p99 goes from the {}th value to the largest", quantile_ranks(500, 0.99)[0]),
    ("Below {} requests not even the maximum", next(n for n in range(1, 999) if quantile_ranks(n, 0.99)[1] is not None)),
    ("no lower end below {} requests", next(n for n in range(1, 999) if quantile_ranks(n, 0.1)[0] is not None)),
    (" {} a bucket is the usual advice", USUAL),
    ("fewer than {} tells little", FEW),
    ("or fewer than {} requests", LEAST_REQUESTS),
    ("Responses of fewer than {} tokens", SHORTEST_RESPONSE),
    ("unless another is {:.0f} % better", 100 * (BETTER_BY - 1)),
]  # fmt: skip

# Names, formulas and conventions: nothing to compute.
CONVENTIONS = (
    "p10", "p99", "95 %", "t1", "at least 1", "k + 1", "k+1", "above 1", "below 1", "j+1", "j+2", "k*c + 1", "1 - alpha", "gives 1 ",
    "the line 1", "k = 1 ", "crosses 1", "leave 1",
)  # fmt: skip


@pytest.mark.parametrize(("sentence", "value"), FACTS)
def test_a_number(sentence: str, value: float) -> None:
    assert sentence.format(value) in TEXT


def test_no_number_is_left_over() -> None:
    rest = TEXT
    for sentence, value in sorted(FACTS, key=lambda fact: -len(fact[0])):
        said = sentence.format(value)
        rest = rest.replace(said, re.sub(r"\d", "_", said))
    for name in CONVENTIONS:
        rest = rest.replace(name, "_")
    rest = re.sub(r" \d+\. \*\*", " ", rest)  # the list of figures
    assert re.findall(r"\S*\d\S*", rest) == []


def test_the_largest_of_five_hundred_is_the_end_of_the_p99() -> None:
    assert quantile_ranks(500, 0.99)[1] == 500


def test_one_more_token_raises_the_rate_exactly_when_the_schedule_drafts_it() -> None:
    tokens, time = A, T1 * break_even(4)
    for cost in (FIFTH, STEP):
        threshold = LAMBDA * cost
        assert (tokens + threshold + 1e-9) / (time + cost) > tokens / time
        assert (tokens + threshold - 1e-9) / (time + cost) < tokens / time


def test_a_speedup_above_one_is_less_time_a_token() -> None:
    speculative = (K * D + V[5] + H) / A
    assert T1 / speculative == pytest.approx(A / break_even(4))


def test_rounds_of_one_request_drawn_one_by_one_look_like_more_evidence() -> None:
    """The factor of the text, from what it describes: requests with a level of their own, a tenth of the variance."""
    import numpy as np

    random = np.random.default_rng(0)
    levels = random.normal(0, math.sqrt(0.1), (4000, 30, 1))
    rounds = levels + random.normal(0, math.sqrt(0.9), (4000, 30, 100))
    true = rounds.mean(axis=(1, 2)).std()
    by_round = np.sqrt(rounds.var(axis=(1, 2)).mean() / (30 * 100))
    assert true / by_round == pytest.approx(math.sqrt(1 + 99 * 0.1), rel=0.05)
