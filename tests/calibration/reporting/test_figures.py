"""What the report's figures show, read from matplotlib's own axes."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from specexport.calibration.reporting import figures as module
from specexport.calibration.reporting.figures import LONGEST_NAME, MAX_ROUTES, Figure, figures
from specexport.calibration.statistics.intervals import UNBOUNDED
from specexport.calibration.statistics.results import Interval
from support import analyses


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that were drawn on, in order."""
    found, drawing = [], module.drawing

    @contextmanager
    def kept(*size: float, **named: float) -> Iterator[tuple[Any, list[str]]]:
        with drawing(*size, **named) as (one, drawn):
            found.append(one)
            yield one, drawn

    monkeypatch.setattr(module, "drawing", kept)
    return found


def texts(figure: Figure) -> list[str]:
    svg = b64decode(figure.image.removeprefix("data:image/svg+xml;base64,")).decode()
    return re.findall(r"<text[^>]*>(.*?)</text>", svg)


def points(line: Any) -> list[tuple[float, float]]:
    return [tuple(map(float, point)) for point in line.get_xydata()]


def test_a_token_s_time_is_plain_time_over_the_speedup(axes: list[Any]) -> None:
    analysis = analyses.analysis()
    shown = texts(figures(analysis)[0])
    for index, route in enumerate(analysis.routes):
        plain, speedup = 1000 * route.measured.latency_plain.p50, route.judged.speedup
        bars = [bar.get_width() for bar in axes[0].patches[2 * index : 2 * index + 2]]
        assert bars == pytest.approx([plain, plain / speedup.value])
        ((start, end),) = axes[0].collections[index].get_segments()
        assert (start[0], end[0]) == pytest.approx((plain / speedup.high, plain / speedup.low))
        assert any(f"{plain / speedup.value:.2f}" in text for text in shown)


@pytest.mark.parametrize("speedup", [Interval(1.2, 0.0, UNBOUNDED), Interval(1.2, 0.0, 1.5)])
def test_an_interval_without_an_end_is_not_drawn(axes: list[Any], speedup: Interval) -> None:
    entry = analyses.route("one", "undecided", 0.5, k_max=1)
    figures(analyses.analysis([replace(entry, chosen=replace(entry.chosen, speedup=speedup))], k_max=1))
    ((start, end),) = axes[0].collections[0].get_segments()
    assert start[0] == end[0]


def test_acceptance_is_in_per_cent_by_position(axes: list[Any]) -> None:
    analysis = analyses.analysis()
    figures(analysis)
    for line, route in zip(axes[1].lines, analysis.routes, strict=True):
        assert points(line) == [(place, 100 * share) for place, share in enumerate(route.acceptance, start=1)]


def test_the_parts_of_a_round_stand_on_each_other_under_what_its_tokens_take_plain(axes: list[Any]) -> None:
    analysis = analyses.analysis()
    figures(analysis)
    point, k_max = analysis.costs.points[1], analysis.max_draft_tokens
    bars = axes[2].patches
    tops = [bar.get_y() + bar.get_height() for bar in bars[-(k_max + 1) :]]
    assert tops == pytest.approx([1000 * one.median for one in point.rounds])
    plain = 1000 * point.rounds[0].median
    for line, route in zip(axes[2].lines, analysis.routes, strict=True):
        lengths = [one.acceptance_length for one in route.candidates if one.drafter == route.recorded_drafter]
        assert points(line) == [(k, pytest.approx(plain * a)) for k, a in enumerate([1.0, *lengths])]


def test_speedups_by_k_with_intervals(axes: list[Any]) -> None:
    analysis = analyses.analysis()
    shown = figures(analysis)[3:]
    assert [one.title for one in shown] == [f"Expected speedup of {route.route}" for route in analysis.routes]
    for panel, route in zip(axes[3:], analysis.routes, strict=True):
        drafters = sorted({one.drafter for one in route.candidates})
        for bars, drafter in zip(panel.containers, drafters, strict=True):
            wanted = [one for one in route.candidates if one.drafter == drafter]
            assert points(bars.lines[0]) == [(one.num_draft_tokens, one.speedup.value) for one in wanted]
            ends = [float(end[1]) for segment in bars.lines[2][0].get_segments() for end in segment]
            assert ends == pytest.approx([end for one in wanted for end in (one.speedup.low, one.speedup.high)])


def test_without_a_draft_model_no_draft_passes_are_drawn() -> None:
    assert "draft passes" in texts(figures(analyses.analysis())[2])
    assert "draft passes" not in texts(figures(analyses.lookups_only())[2])


def test_of_many_routes_those_with_the_most_requests(axes: list[Any]) -> None:
    routes = [analyses.route(f"r{count}", "off", 0.1, requests=20 + count, k_max=1) for count in range(MAX_ROUTES + 2)]
    figures(analyses.analysis(routes, k_max=1))
    assert [label.get_text() for label in axes[0].get_yticklabels()] == [one.route for one in routes[2:]]


@pytest.mark.parametrize("name", ["$\\frac{1}{2}$", "_hidden", "\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\x1b[31m", "x" * 99])
def test_any_name_of_a_route_is_text(name: str) -> None:
    wanted = name.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    wanted = wanted if len(wanted) <= LONGEST_NAME else wanted[: LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
    shown = figures(analyses.analysis([analyses.route(name, "off", 0.2, k_max=1)], k_max=1))
    for figure in shown[:3]:
        assert wanted in [text.lstrip("\N{ZERO WIDTH SPACE}") for text in texts(figure)]


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    from matplotlib import rcParams

    before = dict(rcParams)
    figures(analyses.lookups_only())
    assert dict(rcParams) == before
