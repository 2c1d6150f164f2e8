from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from specexport.calibration.reporting.sections import NO_SIGNALS, TITLES, sections
from specexport.calibration.reporting.summary import WIDTH, _table, render
from specexport.calibration.reporting.tables import Table, printable
from specexport.calibration.statistics.intervals import UNBOUNDED
from specexport.calibration.statistics.results import Bucket, Interval
from specexport.calibration.survival.fit import MIN_TOKENS
from specexport.calibration.verdicts.verdict import SHORTEST_RESPONSE
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


def test_numbers_stand_below_each_other() -> None:
    table = Table(
        ("route", "n", "speedup", "remark"),
        (("a", "1", "10.00x", "x"), ("long name", "1000", "0.97x", "")),
        remark=True,
    )
    assert list(_table(table)) == [
        "route         n  speedup  remark",
        "a             1   10.00x  x",
        "long name  1000    0.97x",
    ]


def test_what_does_not_fit_is_continued_behind_the_name() -> None:
    columns = ("route", *(f"token {number}" for number in range(1, 21)))
    shown = list(_table(Table(columns, (("code", *(f"{number} %" for number in range(20))),))))
    assert shown[0].startswith("route  token 1  ")
    assert shown[2] == ""
    assert [line.split()[0] for line in (shown[1], shown[4])] == ["code", "code"]
    assert "token 20" in shown[3]
    for number in range(20):
        assert sum(f" {number} %" in line for line in shown) == 1


def test_a_long_name_is_cut_before_numbers_are() -> None:
    shown = list(_table(Table(("route", *["1234567"] * 9), (("x" * 80, *["1234567"] * 9),))))
    assert len(shown) == 2
    assert shown[1].startswith("x" * 20)
    assert "\N{HORIZONTAL ELLIPSIS}  1234567" in shown[1]


def test_names_cannot_command_the_terminal() -> None:
    entry = replace(analyses.route("\x1b[2J\rcode\u202e", "on", 0.5), words="see\x07\nOFF code")
    text = render(replace(analyses.analysis([entry]), command="a\x1b]0;b"))
    assert not any(character in text for character in "\x1b\r\x07\u202e")
    assert "\ufffd[2J\ufffdcode\ufffd" in text
    assert "\nOFF" not in text
    assert printable("naïve 路由 ✓") == "naïve 路由 ✓"


def test_no_colours() -> None:
    assert render(ANALYSIS).isascii() or "\x1b" not in render(ANALYSIS)


def test_the_textbook_stands_beside_the_measurement() -> None:
    entry = analyses.route("code", "on", 0.8)
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "acceptance")
    rows = section.tables[1].rows
    assert [row[2] for row in rows] == ["1", "2", "3", "4"]
    assert rows[3][3:6] == ("0.80", "3.36", f"{entry.chosen.acceptance_length:.2f}")  # (1 - 0.8 ** 5) / (1 - 0.8)
    assert rows[3][6] == f"{entry.chosen.acceptance_length - (1 - 0.8**5) / 0.2:+.2f}"


def test_the_textbook_is_of_the_recorded_drafter() -> None:
    """alpha is the recorded model's, so lookups must not be compared with it, even where they were chosen."""
    entry = analyses.route("code", "on", 0.8)
    lookup = next(one for one in entry.candidates if one.drafter == "ngram")
    entry = replace(entry, chosen=lookup)
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "acceptance")
    assert {row[1] for row in section.tables[1].rows} == {"model"}


def test_an_interval_that_says_nothing() -> None:
    entry = analyses.route("one", "undecided", 0.5)
    chosen = replace(entry.chosen, speedup=Interval(1.2, 0.0, UNBOUNDED))
    text = render(analyses.analysis([replace(entry, chosen=chosen, candidates=(chosen,))]))
    assert "1.20x  unknown" in text
    assert "0000" not in text


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


def test_what_a_bucket_can_tell() -> None:
    sizes = {19: "says little", 20: "fewer than usual", 499: "fewer than usual", 500: ""}
    buckets = tuple(Bucket("prompt", 64, 128, size, Interval(2.0, 1.0, 3.0)) for size in sizes)
    entry = replace(
        analyses.route("one", "on", 0.5),
        buckets=(*buckets, Bucket("response", 128, None, 500, Interval(2.0, 1.0, 3.0))),
    )
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "lengths")
    rows = section.tables[1].rows
    assert [row[-1] for row in rows] == [*sizes.values(), ""]
    assert rows[0][1:6] == ("prompt", "64 to 127", "19", "2.00", "1.00 to 3.00")
    assert rows[-1][1:3] == ("response", "128 or more")


def test_single_requests_of_both_kinds() -> None:
    entry = analyses.route("one", "on", 0.5)
    entry = replace(entry, measured=replace(entry.measured, speedups=(0.5, 1.0, 1.5, 2.0, 3.0)))
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "distribution")
    expected, measured = section.tables[0].rows
    chosen = entry.chosen
    assert expected[:6] == ("one", "expected", chosen.drafter, str(chosen.num_draft_tokens), "60", f"{chosen.p10:.2f}x")
    assert expected[-1] == f"{100 * chosen.slower:.0f} %"
    assert measured == ("one", "measured", "model", "4", "5", "0.70x", "1.50x", "2.60x", "20 %")


def test_the_chosen_signal_and_its_errors() -> None:
    (section,) = (one for one in sections(ANALYSIS) if one.key == "signals")
    assert section.tables[0].rows == (
        ("probability", "3.4 %", "5.2 %", "0.780", "1750", ""),
        ("head", "1.3 %", "1.8 %", "0.842", "1725", "chosen"),
    )
    assert " ".join(NO_SIGNALS.format(least_tokens=MIN_TOKENS).split()) in " ".join(
        render(analyses.lookups_only()).split()
    )


def test_what_was_chosen_is_marked_once() -> None:
    (section,) = (one for one in sections(ANALYSIS) if one.key == "speedups")
    marked = {row[:3]: row[-1] for row in section.tables[0].rows if row[-1]}
    assert marked == {
        (route.route, route.chosen.drafter, str(route.chosen.num_draft_tokens)): (
            "judged, but not used" if route.policy.verdict == "off" else "chosen"
        )
        for route in ANALYSIS.routes
    }
    assert set(marked.values()) == {"judged, but not used", "chosen"}
    assert len(section.tables[0].rows) == sum(len(route.candidates) for route in ANALYSIS.routes)


def test_drafters_that_adapt_are_compared_too() -> None:
    entry = analyses.route("one", "on", 0.5)
    adapting = tuple(replace(entry.chosen, drafter=name, adapts=True) for name in ("model", "ngram"))
    entry = replace(entry, adaptive=adapting[1], adapting=adapting)
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "speedups")
    rows = [(row[1], row[2], row[-1]) for row in section.tables[0].rows]
    assert rows[:2] == [("model", "adaptive", ""), ("ngram", "adaptive", "chosen")]
    assert (entry.chosen.drafter, str(entry.chosen.num_draft_tokens), "best fixed k") in rows


def test_without_details_the_verdicts_alone_are_shown() -> None:
    assert render(ANALYSIS).startswith(render(ANALYSIS, details=False))
    assert not any(TITLES[key] in render(ANALYSIS, details=False).splitlines() for key in TITLES if key != "verdicts")


def test_requests_that_do_not_count_are_told() -> None:
    entry = replace(analyses.route("one", "on", 0.5), requests=62)
    text = " ".join(render(analyses.analysis([entry]), details=False).split())
    assert f"(2 of 62 do not count: answers of fewer than {SHORTEST_RESPONSE} tokens)" in text


def test_latency_plain_and_speculative() -> None:
    (section,) = (one for one in sections(ANALYSIS) if one.key == "latency")
    plain, speculative = section.tables[0].rows[:2]
    assert plain == ("code", "plain", "60", "31.00", "2.10", "2.20", "2.60", "3.90")
    assert speculative[:4] == ("code", "speculative", "60", "33.00")


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


def test_a_draft_of_too_few_judged_tokens_is_not_called_none() -> None:
    shown = " ".join(render(replace(ANALYSIS, signals=(), signal=None)).split())
    assert f"That needs a draft model whose confidence can be read, and at least {MIN_TOKENS} of its tokens" in shown
    assert "no draft model" not in shown


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


def test_a_session_that_adapts_has_no_k() -> None:
    entry = analyses.route("one", "on", 0.5)
    entry = replace(entry, adaptive=replace(entry.chosen, adapts=True))
    (section,) = (one for one in sections(analyses.analysis([entry])) if one.key == "distribution")
    assert [row[3] for row in section.tables[0].rows] == ["adaptive", str(entry.measured.num_draft_tokens)]
