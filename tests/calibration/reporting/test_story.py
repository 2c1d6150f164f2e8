"""The story in front of the evidence, asked of axes that only write down."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from specexport.calibration.reporting import story as module
from specexport.calibration.reporting.sections import answer
from specexport.calibration.reporting.story import MOST_ROUTES, story
from specexport.calibration.statistics.intervals import UNBOUNDED
from specexport.calibration.statistics.results import Interval, RouteAnalysis
from specexport.runtime.policy.routes import Verdict
from support import analyses
from support.paper import Paper, papers_of


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> list[Paper]:
    class Spines(Paper):
        def __getitem__(self, name: str) -> Paper:
            return self

    monkeypatch.setattr(Paper, "spines", Spines(""), raising=False)
    return papers_of(module, monkeypatch)


def test_a_token_s_time_is_plain_time_over_the_speedup(papers: list[Paper]) -> None:
    analysis = analyses.analysis()
    chapter = story(analysis)[0]
    bars, spreads = papers[0].of("barh"), papers[0].of("errorbar")
    for index, route in enumerate(analysis.routes):
        plain, speedup = 1000 * route.measured.latency_plain.p50, route.judged.speedup
        times = [arguments[1] for arguments, _ in bars[2 * index : 2 * index + 2]]
        assert times == pytest.approx([plain, plain / speedup.value])
        ((time,), _), keywords = spreads[index]
        ((below,), (above,)) = keywords["xerr"]
        assert (time - below, time + above) == pytest.approx((plain / speedup.high, plain / speedup.low))
    best = analysis.routes[0]
    assert chapter.headline.startswith("code: ")
    assert f"{1000 * best.measured.latency_plain.p50 / best.judged.speedup.value:.2f} ms" in chapter.headline


def test_no_route_is_praised_that_is_not_on(papers: list[Paper]) -> None:
    unsure, off = analyses.route("a", "undecided", 0.9), analyses.route("b", "off", 0.1)
    routes = [replace(unsure, chosen=replace(unsure.chosen, speedup=Interval(1.1, 0.97, 1.3))), off]
    assert story(analyses.analysis(routes))[0].headline == "No route is clearly faster with speculation"


@pytest.mark.parametrize(
    ("verdict", "requests", "words"),
    [
        ("undecided", 20, "its slow requests are undecided"),
        ("undecided", 19, "from only 19 requests"),
        ("off", 20, "not in its slow requests"),
    ],
)
def test_a_gain_on_average_alone_is_called_so(papers: list[Paper], verdict: Verdict, requests: int, words: str) -> None:
    entry = analyses.route("b", verdict, 0.9, requests=requests)
    judged = replace(entry.judged, speedup=Interval(1.3, 1.05, 1.6))
    routes = [analyses.route("a", "off", 0.1), replace(entry, chosen=judged)]
    assert story(analyses.analysis(routes))[0].headline == f"b: 1.30x on average, but {words}"


@pytest.mark.parametrize(
    "speedup", [Interval(math.nan, math.nan, math.nan), Interval(0.0, 0.0, 0.0), Interval(1.2, 0.0, UNBOUNDED)]
)
def test_an_interval_without_an_end_is_not_drawn(papers: list[Paper], speedup: Interval) -> None:
    entry = analyses.route("one", "undecided", 0.5)
    story(analyses.analysis([replace(entry, chosen=replace(entry.chosen, speedup=speedup))]))
    ((_, keywords),) = papers[0].of("errorbar")
    assert keywords["xerr"] == [[0.0], [0.0]]


def test_the_parts_of_a_round_stand_on_each_other_under_what_its_tokens_take_plain(papers: list[Paper]) -> None:
    analysis = analyses.analysis()
    chapter = story(analysis)[2]
    point = analysis.costs.points[1]
    (verify, under), (draft, over_verify), (host, over_both) = (
        (arguments[1], keywords["bottom"]) for arguments, keywords in papers[2].of("bar")
    )
    assert verify == [1000 * one.median for one in point.verify]
    assert draft == [1000 * k * point.draft.median for k in range(5)]
    assert host == [1000 * one.median for one in point.host]
    assert under == [0.0] * 5
    assert over_verify == verify
    assert over_both == pytest.approx([one + other for one, other in zip(verify, draft, strict=True)])
    counts, worth = papers[2].of("plot")[0][0]
    lengths = [1.0, *(one.acceptance_length for one in analysis.routes[0].candidates[:4])]
    assert counts == [0, 1, 2, 3, 4]
    assert worth == pytest.approx([1000 * point.rounds[0].median * length for length in lengths])
    assert f"{point.rounds[4].median / point.rounds[0].median:.2f} plain rounds" in chapter.headline


def test_of_many_routes_those_with_the_most_requests(papers: list[Paper]) -> None:
    routes = [analyses.route(f"r{number:02}", "off", 0.2, requests=20 + number % 15, k_max=1) for number in range(15)]
    names = [entry.name for entry in story(analyses.analysis(routes, k_max=1))[1].figure.legend]
    assert names == [f"r{number:02}" for number in range(3, 15)]
    assert len(names) == MOST_ROUTES


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
