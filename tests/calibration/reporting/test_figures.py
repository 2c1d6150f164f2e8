"""What the figures draw, asked of axes that only write down."""

from __future__ import annotations

import pytest
from specexport.calibration.reporting import figures as module
from specexport.calibration.reporting.figures import figures
from specexport.calibration.reporting.styles import Figure
from specexport.calibration.reporting.svg import INK, SERIES
from specexport.calibration.statistics.results import Analysis, RouteAnalysis
from support import analyses
from support.paper import Paper, papers_of


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> list[Paper]:
    return papers_of(module, monkeypatch)


def drawn(papers: list[Paper], analysis: Analysis) -> dict[str, list[tuple[Paper, Figure]]]:
    """By section. The papers are told apart by their titles."""
    begin = {
        "costs": ("A round", "Tokens per round"),
        "speedups": ("Expected speedup",),
        "distribution": ("Speedups of",),
        "signals": ("Reliability",),
    }
    found = figures(analysis)
    return {
        key: list(zip([paper for paper in papers if paper.title.startswith(begin[key])], found[key], strict=True))
        for key in found
    }


@pytest.fixture
def code() -> RouteAnalysis:
    return analyses.route("code", "on", 0.8)


def test_costs_are_over_a_plain_round_with_their_spread(papers: list[Paper], code: RouteAnalysis) -> None:
    analysis = analyses.analysis([code])
    paper, figure = drawn(papers, analysis)["costs"][0]
    point = analysis.costs.points[1]
    plain = point.rounds[0].median
    _, (band, _), _ = paper.of("fill_between")
    assert band == (
        [0, 1, 2, 3, 4],
        [one.p10 / plain for one in point.rounds],
        [one.p90 / plain for one in point.rounds],
    )
    lines = paper.of("plot")
    assert len(lines) == 6
    assert lines[2][0] == ([0, 1, 2, 3, 4], [one.median / plain for one in point.rounds])
    looked_up = [1.0, *[(point.verify[k].median + point.host[k].median) / plain for k in range(1, 5)]]
    assert lines[3][0] == ([0, 1, 2, 3, 4], looked_up)
    assert [str(keywords) for _, keywords in (lines[0], lines[2], lines[4], lines[1])] == [
        entry.svg for entry in figure.legend
    ]


def test_tokens_a_round_against_the_break_even_line(papers: list[Paper]) -> None:
    entry = analyses.route("chat", "undecided", 0.36)
    ((paper, figure),) = drawn(papers, analyses.analysis([entry]))["costs"][1:]
    candidates = [one for one in entry.candidates if one.drafter == entry.chosen.drafter]
    lengths, needed = [one.acceptance_length for one in candidates], [one.break_even for one in candidates]
    needed_line, textbook, line = (arguments for arguments, _ in paper.of("plot"))
    assert needed_line == ([1, 2, 3, 4], needed)
    assert textbook == ([1, 2, 3, 4], list(entry.textbook[1:]))
    assert line == ([1, 2, 3, 4], lengths)
    (_, gain), (_, loss) = paper.of("fill_between")
    assert (gain["color"], loss["color"]) == (SERIES[2], SERIES[1])  # green, red
    assert gain["where"] == [one > other for one, other in zip(lengths, needed, strict=True)]
    assert set(gain["where"]) == {True, False}
    assert [one != other for one, other in zip(gain["where"], loss["where"], strict=True)] == [True] * 4
    assert [entry.name for entry in figure.legend] == ["a(k) on your text", "a*(k) break-even", "textbook tau"]


def test_speedups_with_intervals_and_the_line_one(papers: list[Paper], code: RouteAnalysis) -> None:
    ((paper, figure),) = drawn(papers, analyses.analysis([code]))["speedups"]
    assert paper.one("axhline") == (1,)
    for drafter, ((places, values), keywords), entry in zip(
        ("model", "ngram"), paper.of("errorbar"), figure.legend, strict=False
    ):
        candidates = [one for one in code.candidates if one.drafter == drafter]
        assert [round(place) for place in places] == [1, 2, 3, 4]
        assert values == [one.speedup.value for one in candidates]
        below, above = keywords["yerr"]
        assert list(below) == pytest.approx([one.speedup.value - one.speedup.low for one in candidates])
        assert list(above) == pytest.approx([one.speedup.high - one.speedup.value for one in candidates])
        assert entry.name == drafter
    ring = paper.one("plot")
    assert [round(place) for place in ring[0]] == [code.chosen.num_draft_tokens]
    assert ring[1] == [code.chosen.speedup.value]


def test_single_requests_expected_and_measured(papers: list[Paper], code: RouteAnalysis) -> None:
    ((paper, figure),) = drawn(papers, analyses.analysis([code]))["distribution"]
    assert paper.one("axvline") == (1,)
    measured, expected = paper.of("ecdf")
    assert expected[0] == (list(code.speedups),)
    assert measured[0] == (list(code.measured.speedups),)
    assert [entry.svg for entry in figure.legend[:2]] == [str(expected[1]), str(measured[1])]
    assert paper.one("plot") == ([code.chosen.p10], [0.1])
    low, high = paper.one("set_xlim")
    assert low < min(*code.speedups, *code.measured.speedups, 1) < max(*code.speedups, 1) < high
    assert figure.caption == f"code, slower: {100 * code.chosen.slower:.0f} %"


def test_reliability_against_the_diagonal(papers: list[Paper], code: RouteAnalysis) -> None:
    analysis = analyses.analysis([code])
    for (paper, _), quality in zip(drawn(papers, analysis)["signals"], analysis.signals, strict=True):
        (diagonal, look), (line, _) = paper.of("plot")
        assert (diagonal, look["color"]) == (([0, 1], [0, 1]), INK)
        assert line == ([bin[0] for bin in quality.reliability], [bin[1] for bin in quality.reliability])
        sizes = paper.of("scatter")[0][1]["s"]
        assert sizes == sorted(sizes)
        assert sizes[-1] > 2 * sizes[0]
