"""The line with which the report begins: whether speculation pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specexport.calibration.reporting.report import render
from specexport.calibration.reporting.sections import answer
from specexport.calibration.statistics.results import Interval, RouteAnalysis
from support import analyses


@pytest.mark.parametrize(
    ("verdicts", "line"),
    [
        (["on"], "Speculation pays"),
        (["off"], "Speculation does not pay"),
        (["undecided"], "Undecided"),
        (["undecided", "undecided"], "Undecided on all 2 routes"),
        (["on", "on"], "Speculation pays on all 2 routes"),
        (["off", "off"], "Speculation pays on none of 2 routes"),
        (["on", "off"], "Speculation pays on 1 of 2 routes"),
        (["off", "undecided"], "Speculation pays on 0 of 2 routes, 1 undecided"),
    ],
)
def test_the_answer_in_a_line(verdicts: list[str], line: str) -> None:
    entry = analyses.route("one", "on", 0.5, k_max=1)
    routes = [replace(entry, policy=replace(entry.policy, verdict=verdict)) for verdict in verdicts]
    assert answer(analyses.analysis(routes, k_max=1)) == line


def test_the_answer_says_that_more_requests_are_needed() -> None:
    few, many = (
        unclear(analyses.route(f"of {count}", "undecided", 0.5, requests=count, k_max=1)) for count in (19, 20)
    )
    assert answer(analyses.analysis([few], k_max=1)) == "Too few requests to decide"
    assert answer(analyses.analysis([few, few], k_max=1)) == "Too few requests to decide on all 2 routes"
    assert answer(analyses.analysis([few, many], k_max=1)) == "Undecided on all 2 routes"


def unclear(entry: RouteAnalysis) -> RouteAnalysis:
    return replace(entry, chosen=replace(entry.chosen, speedup=Interval(1.1, 0.9, 1.3)))


def few(low: float, high: float, missing: int, p10: float = 1.0) -> RouteAnalysis:
    entry = analyses.route("one", "undecided", 0.5, requests=20 - missing, k_max=1)
    chosen = replace(entry.chosen, speedup=Interval((low + high) / 2, low, high), p10=p10)
    return replace(entry, chosen=chosen, missing=missing)


@pytest.mark.parametrize(
    ("routes", "line"),
    [
        ([few(1.57, 2.43, 15)], "Faster on these requests; 15 more make it a verdict"),
        ([few(1.57, 2.43, 1)], "Faster on these requests; 1 more makes it a verdict"),
        ([few(0.57, 0.93, 3)], "Slower on these requests; 3 more make it a verdict"),
        ([few(1.1, 2, 3), few(1.2, 2, 9)], "Faster on these requests; 9 more of each route make it a verdict"),
        ([few(1.1, 2, 3), few(0.9, 2, 9)], "Faster on these requests on 1 of 2 routes; 3 more make it a verdict"),
        ([few(0.9, 2, 3)], "Too few requests to decide"),
        ([few(1.1, 2, 3, p10=0.5)], "Too few requests to decide"),  # some requests were slower
        ([few(1.1, 2, 3), few(0.5, 0.9, 9)], "Too few requests to decide on all 2 routes"),
    ],
)
def test_the_answer_says_first_what_few_requests_show(routes: list[RouteAnalysis], line: str) -> None:
    assert answer(analyses.analysis(routes, k_max=1)) == line


def test_the_page_begins_with_the_answer() -> None:
    page = render(analyses.analysis())
    assert page.index("<h1>Speculation pays on 1 of 3 routes, 1 undecided</h1>") < page.index('<section id="verdicts">')
