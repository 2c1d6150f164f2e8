"""Every number of docs/when-it-pays.md, recomputed.

In the document a number is followed by the name of the fact that it states: `1.73<!--fact:break_even-->`.
"""

from __future__ import annotations

import math
import re
from itertools import count
from pathlib import Path
from statistics import NormalDist

import pytest
from specexport.calibration.reporting.sections import TITLES
from specexport.calibration.reporting.tables import PREDICTION_TOLERANCE
from specexport.calibration.statistics.sample_size import FEW, USUAL, quantile_ranks
from specexport.calibration.verdicts.verdict import BETTER_BY, LEAST_REQUESTS, SHORTEST_RESPONSE

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "when-it-pays.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")

# The example.
T1, D, H, K, A = 10.0, 1.5, 0.3, 4, 2.6
V = {5: 11.0, 6: 11.2}
STEP_PASS = 14.0
# A pair that was measured, with the host's time left out of its costs.
HOST_A, HOST_BREAK_EVEN, HOST_MEASURED = 3.76, 3.67, 0.93
# A route that is not decided.
UNDECIDED, HALF, REQUESTS = 1.04, 0.06, 50
ALPHA, ALPHA_K = 0.8, 5
REQUEST_SPEEDUPS = [1.6] * 8 + [0.7] * 2
ROUNDS, CORRELATION = 100, 0.1
DRIFT, DRIFT_TRUE = 0.15, 1.10
SETTINGS, SETTINGS_ERROR = 8, 0.03
TAIL_REQUESTS = 500


def break_even(k: int, drafts: int | None = None) -> float:
    return ((k if drafts is None else drafts) * D + V[k + 1] + H) / T1


def tau(alpha: float, k: int) -> float:
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def expected_largest(number: int) -> float:
    """Of so many standard normal draws."""
    normal, step = NormalDist(), 1e-3
    places = (index * step for index in range(-8000, 8000))
    return sum(x * number * normal.pdf(x) * normal.cdf(x) ** (number - 1) * step for x in places)


RATE = A / (T1 * break_even(K))
FIFTH_COST, STEP_COST = D + V[6] - V[5], D + STEP_PASS - V[5]
TOO_NARROW = math.sqrt(1 + (ROUNDS - 1) * CORRELATION)
NEEDED = math.ceil(REQUESTS * (HALF / (UNDECIDED - 1)) ** 2)
ACCEPTANCE_RATE = round((tau(ALPHA, ALPHA_K) - 1) / ALPHA_K, 2)

FACTS = {
    # The rule and its example.
    "t1": f"{T1:.0f}",
    "d": f"{D:.1f}",
    "v5": f"{V[5]:.0f}",
    "v6": f"{V[6]:.1f}",
    "h": f"{H:.1f}",
    "k": f"{K}",
    "a": f"{A:.1f}",
    "break_even": f"{break_even(K):.2f}",
    "speedup": f"{A / break_even(K):.2f}",
    "nothing_accepted": f"{1 / break_even(K):.2f}",
    "lookup_break_even": f"{break_even(K, drafts=0):.2f}",
    # The verdict.
    "least_requests": f"{LEAST_REQUESTS}",
    "shortest_response": f"{SHORTEST_RESPONSE}",
    "better_by": f"{100 * (BETTER_BY - 1):.0f}",
    "undecided_speedup": f"{UNDECIDED:.2f}",
    "undecided_half": f"{HALF:.2f}",
    "undecided_requests": f"{REQUESTS}",
    "needed_requests": f"{NEEDED}",
    "missing_requests": f"{NEEDED - REQUESTS}",
    "rounds_per_request": f"{ROUNDS}",
    "round_correlation": f"{CORRELATION:.1f}",
    "too_narrow": f"{TOO_NARROW:.1f}",
    "coverage": f"{100 * (2 * NormalDist().cdf(NormalDist().inv_cdf(0.975) / TOO_NARROW) - 1):.0f}",
    "prediction_tolerance": f"{100 * PREDICTION_TOLERANCE:.0f}",
    # The schedule.
    "rate": f"{RATE:.2f}",
    "fifth_cost": f"{FIFTH_COST:.1f}",
    "fifth_survival": f"{RATE * FIFTH_COST:.2f}",
    "step_pass": f"{STEP_PASS:.0f}",
    "step_cost": f"{STEP_COST:.1f}",
    "step_survival": f"{RATE * STEP_COST:.2f}",
    # The mistakes.
    "one_pass_break_even": f"{break_even(K, drafts=1):.2f}",
    "one_pass_speedup": f"{A / break_even(K, drafts=1):.2f}",
    "accepted": f"{A - 1:.1f}",
    "bonus_forgotten": f"{(A - 1) / break_even(K):.2f}",
    "bonus_twice": f"{(A + 1) / break_even(K):.2f}",
    "alpha": f"{ALPHA:.1f}",
    "alpha_k": f"{ALPHA_K}",
    "tau": f"{tau(ALPHA, ALPHA_K):.2f}",
    "naive_tau": f"{1 + ALPHA_K * ALPHA:.0f}",
    "tau_accepted": f"{tau(ALPHA, ALPHA_K) - 1:.2f}",
    "acceptance_rate": f"{ACCEPTANCE_RATE:.2f}",
    "tau_of_rate": f"{tau(ACCEPTANCE_RATE, ALPHA_K):.2f}",
    "c": f"{D / T1:.2f}",
    "textbook_speedup": f"{tau(ALPHA, ALPHA_K) / (ALPHA_K * D / T1 + 1):.2f}",
    "charged_speedup": f"{tau(ALPHA, ALPHA_K) / break_even(ALPHA_K):.2f}",
    "host_a": f"{HOST_A:.2f}",
    "host_break_even": f"{HOST_BREAK_EVEN:.2f}",
    "host_expected": f"{HOST_A / HOST_BREAK_EVEN:.2f}",
    "host_measured": f"{HOST_MEASURED:.2f}",
    "host_implied": f"{HOST_A / HOST_MEASURED:.2f}",
    "host_gap": f"{HOST_A / HOST_MEASURED - HOST_BREAK_EVEN:.2f}",
    "fast_request": f"{max(REQUEST_SPEEDUPS):.1f}",
    "slow_request": f"{min(REQUEST_SPEEDUPS):.1f}",
    "mean_speedup": f"{sum(REQUEST_SPEEDUPS) / 10:.2f}",
    "total_speedup": f"{10 / sum(1 / speedup for speedup in REQUEST_SPEEDUPS):.2f}",
    "p10_speedup": f"{sorted(REQUEST_SPEEDUPS)[1]:.1f}",
    "slower_share": f"{100 * sum(speedup < 1 for speedup in REQUEST_SPEEDUPS) / 10:.0f}",
    "drift": f"{100 * DRIFT:.0f}",
    "drift_true": f"{DRIFT_TRUE:.2f}",
    "drift_shown": f"{DRIFT_TRUE / (1 + DRIFT):.2f}",
    "settings": f"{SETTINGS}",
    "settings_true": f"{1:.2f}",
    "settings_error": f"{SETTINGS_ERROR:.2f}",
    "settings_best": f"{1 + SETTINGS_ERROR * expected_largest(SETTINGS):.2f}",
    "tail_requests": f"{TAIL_REQUESTS}",
    "tail_rank": f"{quantile_ranks(TAIL_REQUESTS, 0.99)[0]}",
    "tail_bounded": f"{next(n for n in count(1) if quantile_ranks(n, 0.99)[1] is not None)}",
    "p10_bounded": f"{next(n for n in count(1) if quantile_ranks(n, 0.1)[0] is not None)}",
    "usual_requests": f"{USUAL}",
    "few_requests": f"{FEW}",
}

FACT = re.compile(r"(\d+(?:\.\d+)?)<!--fact:(\w+)-->")
# Formulas stand in code: in backticks, or on lines of their own.
CODE = re.compile(r"`[^`]+`|^ {4}.+$", re.MULTILINE)
FORMULAS = {
    "`t1`",
    "`(v(k+1) + h) / t1`",
    "`k + 1`",
    "`v(5)`",
    "`v(6)`",
    "`(k*d + v(5) + h) / t1`",
    "`a_{j+1}`",
    "`1 + k*alpha`",
    "`tau / (k*c + 1)`",
    "`c = d / t1`",
    "plain time per token t1",
    "speculative time per token (k*d + v(k+1) + h) / a(k)",
    "a*(k) = (k*d + v(k+1) + h) / t1 break-even: a round's time in plain rounds",
    "S(k) = a(k) / a*(k) speedup; above 1 it pays",
    "(E + a_{j+1}) / (T + c) > E / T which is a_{j+1} > lambda * c",
    "draft one more iff a_{j+1} > lambda * (d + v(j+2) - v(j+1))",
    "tau = (1 - alpha^(k+1)) / (1 - alpha)",
}
# Nothing to compute: names, the convention of 95 %, the line between gain and loss, and the numbers of the list.
CONVENTIONS = re.compile(r"\bp10\b|\bp99\b|\b95 %|\b(?:above|below|excludes) 1\b|^\d+\. (?=\*\*)", re.MULTILINE)


def problems(text: str) -> list[str]:
    """What in the document is not so."""
    said = FACT.findall(text)
    found = [f"{name} is {FACTS.get(name)}, not {value}" for value, name in said if FACTS.get(name) != value]
    found += [f"{name} is not stated" for name in FACTS.keys() - {name for _, name in said}]
    rest = FACT.sub("", text)
    code = [" ".join(part.split()) for part in CODE.findall(rest)]
    found += [f"{part} is no known formula" for part in code if re.search(r"\d", part) and part not in FORMULAS]
    found += [f"the formula {part} is missing" for part in FORMULAS.difference(code)]
    rest = CONVENTIONS.sub("", CODE.sub("", rest))
    return found + [f"{number} is not computed" for number in re.findall(r"\S*\d\S*", rest)]


def test_every_number_is_as_computed() -> None:
    assert problems(TEXT) == []


def test_a_changed_number_is_found() -> None:
    """Every number of the document, but for those of its numbered list."""
    for place in re.finditer(r"(?<!\n)(?<!\n\d)\d+(?:\.\d+)?", TEXT):
        changed = place[0][:-1] + str((int(place[0][-1]) + 1) % 10)
        assert problems(TEXT[: place.start()] + changed + TEXT[place.end() :]), TEXT[place.start() - 40 : place.end()]


def test_it_goes_through_the_report_by_the_sections_titles() -> None:
    assert re.findall(r"^\d+\. \*\*(.*)\.\*\* ", TEXT, re.MULTILINE) == list(TITLES.values())


def test_the_largest_of_five_hundred_is_the_end_of_the_p99() -> None:
    assert quantile_ranks(TAIL_REQUESTS, 0.99)[1] == TAIL_REQUESTS


def test_one_more_token_raises_the_rate_exactly_when_the_schedule_drafts_it() -> None:
    tokens, time = A, T1 * break_even(4)
    for cost in (FIFTH_COST, STEP_COST):
        threshold = RATE * cost
        assert (tokens + threshold + 1e-9) / (time + cost) > tokens / time
        assert (tokens + threshold - 1e-9) / (time + cost) < tokens / time


def test_a_speedup_above_one_is_less_time_per_token() -> None:
    speculative = (K * D + V[5] + H) / A
    assert T1 / speculative == pytest.approx(A / break_even(4))


def test_rounds_of_one_request_drawn_one_by_one_look_like_more_evidence() -> None:
    """The factor of the text, from what it describes: requests with a level of their own, a tenth of the variance."""
    import numpy as np

    random = np.random.default_rng(0)
    levels = random.normal(0, math.sqrt(0.1), (1000, 30, 1))
    rounds = levels + random.normal(0, math.sqrt(0.9), (1000, 30, 100))
    true = rounds.mean(axis=(1, 2)).std()
    by_round = np.sqrt(rounds.var(axis=(1, 2)).mean() / (30 * 100))
    assert true / by_round == pytest.approx(TOO_NARROW, rel=0.05)
