from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from specexport.calibration.reporting.explanations import NO_SIGNALS, TITLES
from specexport.calibration.reporting.sections import sections
from specexport.calibration.reporting.summary import WIDTH, render
from specexport.calibration.reporting.tables import printable
from specexport.calibration.statistics.results import Interval
from specexport.calibration.survival.fit import LEAST_TOKENS
from support import analyses

ANALYSIS = analyses.analysis()


def lines(text: str, title: str) -> list[str]:
    """Of the section with that title."""
    titles = {section.title for section in sections(ANALYSIS)}
    rest = text.splitlines()
    rest = rest[rest.index(title) + 1 :]
    end = next((index for index, line in enumerate(rest) if line in titles), len(rest))
    return rest[:end]


def test_the_verdicts_come_first() -> None:
    first = render(ANALYSIS).splitlines()
    assert first[0] == TITLES["verdicts"]
    assert first[1].startswith("ON code: Speculate, with 4 draft tokens by model: 1.8")
    assert first[2].startswith("UNDECIDED chat & prose: ")
    assert first[3].startswith(f"OFF {analyses.SCRIPT}: ")
    columns = "verdict route drafter runs k speedup 95 % p10 slower requests missing"
    assert first[5].split() == columns.split()
    assert first[6].split()[:2] == ["ON", "code"]


def test_what_is_missing_for_a_verdict() -> None:
    rows = [
        line.split()
        for line in lines(render(ANALYSIS), TITLES["verdicts"])
        if line.startswith(("ON  ", "OFF  ", "UNDECIDED  "))
    ]
    assert [row[-1] for row in rows] == ["-", "137", "-"]
    assert [row[-2] for row in rows] == ["60", "33", "120"]


@pytest.mark.parametrize(
    ("verdict", "mode", "runs"), [("on", "fixed", "fixed"), ("off", "fixed", "plain"), ("off", "adaptive", "adaptive")]
)
def test_what_requests_of_a_route_get(verdict: str, mode: str, runs: str) -> None:
    entry = analyses.route("one", "on", 0.5)
    entry = replace(entry, policy=replace(entry.policy, verdict=verdict, mode=mode))
    table = sections(analyses.analysis([entry]))[0].tables[0]
    assert dict(zip(table.columns, table.rows[0], strict=True))["runs"] == runs


@pytest.mark.parametrize("name", ["x" * 300, "路由" * 40, "a b " * 60, "e\u0301" * 90])
@pytest.mark.parametrize("k_max", [1, 32])
def test_no_line_is_too_wide_and_columns_stay_aligned(name: str, k_max: int) -> None:
    entry = replace(analyses.route(name, "on", 0.5, k_max=k_max), words=name)
    other = analyses.route("short", "off", 0.1, k_max=k_max)
    text = render(analyses.analysis([entry, other], k_max=k_max))
    assert max(map(cell_len, text.splitlines())) <= WIDTH
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_names_cannot_command_the_terminal() -> None:
    entry = replace(analyses.route("\x1b[2J\rcode\u202e", "on", 0.5), words="see\x07\nOFF code")
    text = render(replace(analyses.analysis([entry]), command="a\x1b]0;b"))
    assert not any(character in text for character in "\x1b\r\x07\u202e")
    assert "\ufffd[2J\ufffdcode\ufffd" in text
    assert "\nOFF" not in text
    assert printable("naïve 路由 ✓") == "naïve 路由 ✓"


def test_the_textbook_stands_beside_the_measurement() -> None:
    entry = analyses.route("code", "on", 0.8)
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "acceptance")
    rows = section.tables[1].rows
    assert [row[2] for row in rows] == ["1", "2", "3", "4"]
    assert rows[3][3:6] == ("0.80", "3.36", f"{entry.chosen.acceptance_length:.2f}")  # (1 - 0.8 ** 5) / (1 - 0.8)
    assert rows[3][6] == f"{entry.chosen.acceptance_length - (1 - 0.8**5) / 0.2:+.2f}"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_replays_of_sampled_runs_come_with_a_warning(temperature: float) -> None:
    section = sections(replace(ANALYSIS, temperature=temperature))[-1]
    assert bool(section.findings) == (temperature > 0)


def test_costs_are_relative_to_a_plain_round() -> None:
    (section,) = (one for one in sections(ANALYSIS) if one.key == "costs")
    table = section.tables[0]
    assert [row[:2] for row in table.rows[:5]] == [("64", str(k)) for k in range(5)]
    point = ANALYSIS.costs.points[1]
    row = dict(zip(table.columns, table.rows[5 + 3], strict=True))
    plain = point.rounds[0].median
    assert row["context"] == "512"
    assert row["round, ms"] == f"{1e3 * point.rounds[3].median:.2f}"
    assert row["p10 to p90"] == f"{1e3 * point.rounds[3].p10:.2f} to {1e3 * point.rounds[3].p90:.2f}"
    assert row["a*(k) model"] == f"{point.rounds[3].median / plain:.2f}"
    assert row["a*(k) lookup"] == f"{(point.verify[3].median + point.host[3].median) / plain:.2f}"
    assert row["d, ms"] == f"{1e3 * point.draft.median:.3f}"
    assert row["v(k+1), ms"] == f"{1e3 * point.verify[3].median:.2f}"
    assert row["h, ms"] == f"{1e3 * point.host[3].median:.3f}"


def test_prediction_and_measurement_that_do_not_agree() -> None:
    near, far = analyses.route("near", "on", 0.8), analyses.route("far", "on", 0.8)
    near = replace(near, measured=replace(near.measured, predicted=1.049, speedup=Interval(1.0, 0.9, 1.1)))
    far = replace(far, measured=replace(far.measured, predicted=0.94, speedup=Interval(1.0, 0.9, 1.1)))
    (section,) = (one for one in sections(analyses.analysis([near, far])) if one.key == "predicted")
    assert [row[-2:] for row in section.tables[0].rows] == [("+4.9 %", ""), ("-6.0 %", "more than 5 % apart")]


def test_the_chosen_signal_and_its_errors() -> None:
    (section,) = (one for one in sections(ANALYSIS) if one.key == "signals")
    assert section.tables[0].rows == (
        ("probability", "3.4 %", "5.2 %", "0.780", "1750", ""),
        ("head", "1.3 %", "1.8 %", "0.842", "1725", "chosen"),
    )
    assert " ".join(NO_SIGNALS.format(least_tokens=LEAST_TOKENS).split()) in " ".join(
        render(analyses.lookups_only()).split()
    )


def test_drafters_that_adapt_are_compared_too() -> None:
    entry = analyses.route("one", "on", 0.5)
    adapting = tuple(replace(entry.chosen, drafter=name, adapts=True) for name in ("model", "ngram"))
    entry = replace(entry, adaptive=adapting[1], adapting=adapting)
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "speedups")
    rows = [(row[1], row[2], row[-1]) for row in section.tables[0].rows]
    assert rows[:2] == [("model", "adaptive", ""), ("ngram", "adaptive", "chosen")]
    assert (entry.chosen.drafter, str(entry.chosen.num_draft_tokens), "best fixed k") in rows


def test_how_it_was_measured() -> None:
    shown = render(ANALYSIS)
    for fact in (
        "command: specexport calibrate demo.bundle --prompts prompts.jsonl",
        "host: a CPU, 2 cores, Linux",
        "temperature: 0",
    ):
        assert fact in shown
    assert f"requests: {60 + 33 + 120}" in shown
    assert "engine: onnxruntime, 2 threads" in shown
    for count, told in ((1, "1 thread"), (0, "its own number of threads")):
        costs = replace(ANALYSIS.costs, threads=count)
        assert f"engine: onnxruntime, {told}\n" in render(replace(ANALYSIS, costs=costs))


def test_a_wrong_prediction_is_told_beside_the_verdicts() -> None:
    """Not one within the interval of what was measured."""
    within, outside = analyses.route("within", "on", 0.5), analyses.route("outside", "on", 0.5)
    within = replace(within, measured=replace(within.measured, predicted=0.94, speedup=Interval(1.0, 0.9, 1.1)))
    outside = replace(outside, measured=replace(outside.measured, predicted=0.89, speedup=Interval(1.0, 0.9, 1.1)))
    text = " ".join(render(analyses.analysis([within, outside]), details=False).split())
    k = outside.measured.num_draft_tokens
    told = f"with k = {k} was predicted at 0.89x and measured at 1.00x: measure again on a quiet host"
    assert f"outside: {outside.recorded_drafter} {told}" in text
    assert text.count("was predicted at") == 1
