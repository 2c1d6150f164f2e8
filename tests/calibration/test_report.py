"""The report: the answer in a line, the verdicts in words, and the tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.calibration.report import SECTIONS, answer, render, verdicts, write_report
from specexport.calibration.statistics.intervals import UNBOUNDED
from specexport.calibration.statistics.results import Interval, RouteAnalysis
from specexport.calibration.tables import milliseconds, number, table
from specexport.errors import OutputError
from support import analyses
from support.refusals import refused

ANALYSIS = analyses.analysis()


def cells(text: str, title: str = "") -> list[list[str]]:
    """The rows of the first table of the section with that title."""
    lines = iter(text[text.index(title) :].splitlines())
    first = next(line for line in lines if line.startswith("| "))
    rows = [first]
    for line in lines:
        if not line.startswith("| "):
            break
        rows.append(line)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize(
    ("policies", "line"),
    [
        (["on"], "Speculation pays"),
        (["off"], "Speculation does not pay"),
        (["undecided"], "Undecided"),
        (["undecided", "undecided"], "Undecided on all 2 routes"),
        (["on", "on"], "Speculation pays on 2 of 2 routes"),
        (["on", "off"], "Speculation pays on 1 of 2 routes"),
        (["off", "undecided"], "Speculation pays on 0 of 2 routes, 1 undecided"),
    ],
)
def test_the_answer_in_a_line(policies: list[str], line: str) -> None:
    entry = analyses.route("one", "on", 0.5, k_max=1)
    routes = [replace(entry, policy=replace(entry.policy, verdict=verdict)) for verdict in policies]
    assert answer(analyses.analysis(routes, k_max=1)) == line


def few(low: float, high: float, missing: int, p10: float = 1.0) -> RouteAnalysis:
    entry = analyses.route("one", "undecided", 0.5, requests=20 - missing, k_max=1)
    chosen = replace(entry.chosen, speedup=Interval((low + high) / 2, low, high), p10=p10)
    return replace(entry, chosen=chosen, missing=missing)


@pytest.mark.parametrize(
    ("routes", "line"),
    [
        ([few(1.57, 2.43, 15)], "Faster on these requests; 15 more would settle it"),
        ([few(0.57, 0.93, 1)], "Slower on these requests; 1 more would settle it"),
        ([few(0.9, 2, 3)], "Too few requests to decide"),
        ([few(1.1, 2, 3, p10=0.5)], "Too few requests to decide"),  # some requests were slower
    ],
)
def test_the_answer_says_first_what_few_requests_show(routes: list[RouteAnalysis], line: str) -> None:
    assert answer(analyses.analysis(routes, k_max=1)) == line


def test_routes_that_few_requests_show() -> None:
    first, second = (replace(few(1.1, 2, missing), route=name) for name, missing in (("a", 3), ("b", 9)))
    unclear, slow = replace(few(0.9, 2, 9), route="b"), replace(few(0.5, 0.9, 9), route="b")
    for other, line in (
        (second, "Faster on these requests; 3 to 9 more of each route would settle it"),
        (unclear, "Faster on these requests on 1 of 2 routes; 3 more would settle it"),
        (slow, "Too few requests to decide on all 2 routes"),
    ):
        assert answer(analyses.analysis([first, other], k_max=1)) == line


def test_the_report_begins_with_the_answer_and_the_verdicts(tmp_path: Path) -> None:
    write_report(ANALYSIS, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Speculation pays on 1 of 3 routes, 1 undecided\n")
    assert verdicts(ANALYSIS) in text
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(SECTIONS)
    with refused(OutputError):
        write_report(ANALYSIS, tmp_path)


def test_a_verdict_in_words_and_numbers() -> None:
    text = verdicts(ANALYSIS)
    assert text.startswith("- ON code: Speculate, with 4 draft tokens by model: 1.8")
    header, _, *rows = cells(text)
    assert "|".join(header) == "verdict|route|drafter|runs|k|speedup|95 %|p10|slower|requests|missing"
    assert [row[0] for row in rows] == ["ON", "UNDECIDED", "OFF"]
    assert [row[-1] for row in rows] == ["-", "137", "-"]
    assert [row[-2] for row in rows] == ["60", "33", "120"]


@pytest.mark.parametrize(
    ("verdict", "mode", "runs"), [("on", "fixed", "fixed"), ("off", "fixed", "plain"), ("off", "adaptive", "adaptive")]
)
def test_what_requests_of_a_route_get(verdict: str, mode: str, runs: str) -> None:
    entry = analyses.route("one", "on", 0.5)
    entry = replace(entry, policy=replace(entry.policy, verdict=verdict, mode=mode))
    header, _, row = cells(verdicts(analyses.analysis([entry])))
    assert dict(zip(header, row, strict=True))["runs"] == runs


def test_what_is_chosen_and_what_is_only_judged() -> None:
    entry = analyses.route("one", "on", 0.5)
    chosen = entry.candidates.index(entry.chosen)
    for verdict, remark in (("on", "chosen"), ("off", "judged, but not used")):
        one = replace(entry, policy=replace(entry.policy, verdict=verdict))
        rows = cells(render(analyses.analysis([one])), "## Speedup by k")[2:]
        assert [row[-1] for row in rows] == [remark * (place == chosen) for place in range(len(rows))]


def test_costs_are_relative_to_a_plain_round() -> None:
    header, _, *rows = cells(render(ANALYSIS), "## Cost of a round")
    assert [row[:2] for row in rows[:5]] == [["64", str(k)] for k in range(5)]
    point = ANALYSIS.costs.points[1]
    row = dict(zip(header, rows[5 + 3], strict=True))
    plain = point.rounds[0].median
    assert row["context"] == "512"
    assert row["round, ms"] == f"{1e3 * point.rounds[3].median:.2f}"
    assert row["a*(k) model"] == f"{point.rounds[3].median / plain:.2f}"
    assert row["a*(k) lookup"] == f"{(point.verify[3].median + point.host[3].median) / plain:.2f}"
    assert row["h, ms"] == f"{1e3 * point.host[3].median:.3f}"


def test_prediction_and_measurement_that_do_not_agree() -> None:
    near, far = analyses.route("near", "on", 0.8), analyses.route("far", "on", 0.8)
    near = replace(near, measured=replace(near.measured, predicted=1.049, speedup=Interval(1.0, 0.9, 1.1)))
    far = replace(far, measured=replace(far.measured, predicted=0.94, speedup=Interval(1.0, 0.95, 1.1)))
    analysis = analyses.analysis([near, far])
    rows = cells(render(analysis), "## Measured speedup")[2:]
    assert [row[-2:] for row in rows] == [["+4.9 %", ""], ["-6.0 %", "more than 5 % apart"]]
    assert "- far: model with k = 4 was predicted at 0.94x and measured at 1.00x" in verdicts(analysis)
    assert "- near: model with" not in verdicts(analysis)


def test_an_interval_without_an_end_and_nothing_to_show() -> None:
    entry = analyses.route("one", "undecided", 0.5)
    chosen = replace(entry.chosen, speedup=Interval(1.2, 0.0, UNBOUNDED))
    assert cells(verdicts(analyses.analysis([replace(entry, chosen=chosen)])))[2][6] == "unknown"
    text = render(analyses.lookups_only())
    assert "nan" not in text
    assert "confidence" not in text
    assert number(math.nan) == "-"
    assert (milliseconds(0.0005), milliseconds(0.05), milliseconds(0.5)) == ("0.500", "50.00", "500.0")


def test_whether_the_confidence_is_read_and_what_it_is_worth() -> None:
    read = render(ANALYSIS)
    assert "The draft's confidence ends drafts early." in read
    assert "off by 1.3 %" in read
    assert "AUC is 0.842" in read
    assert "does not end drafts early" in render(replace(ANALYSIS, reads_confidence=False))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_replays_of_sampled_runs_come_with_a_warning(temperature: float) -> None:
    assert ("When sampling" in render(replace(ANALYSIS, temperature=temperature))) == (temperature > 0)


def test_columns_are_aligned_and_names_are_only_text() -> None:
    text = table("route|n|remark", [("a|b\x1b[2J", 1, "x"), ("\u8def\u7531", 10.5, "")])
    assert text.splitlines() == [
        "| route    |    n | remark |",
        "| -------- | ---: | ------ |",
        "| a\\|b\ufffd[2J |    1 | x      |",
        "| \u8def\u7531     | 10.5 |        |",
    ]
    assert table("route|n", []) == ""
