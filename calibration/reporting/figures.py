"""The figures of an analysis.

Names of routes appear in the page's legends and captions and in titles written by an XML writer, never in text that
matplotlib lays out: it would read some of them as formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...runtime.drafting.names import model_of
from ..statistics.intervals import UNBOUNDED
from ..statistics.results import Analysis, DraftCandidate, Interval, RouteAnalysis, SignalQuality
from .styles import Entry, Figure, Style, positions
from .svg import DASHES, INK, MUTED, PANEL, SERIES, WIDE, drawing, swatch
from .tables import percent, printable


def figures(analysis: Analysis) -> dict[str, tuple[Figure, ...]]:
    """Figures by the key of their section. Raises `MissingPackageError` without matplotlib."""
    drafters = sorted({candidate.drafter for route in analysis.routes for candidate in route.candidates})
    styles = {drafter: Style(index) for index, drafter in enumerate(drafters)}
    speedups = [_speedup(route, styles, _ceiling(analysis)) for route in analysis.routes]
    return {
        "costs": (_cost_curve(analysis), *(_break_even(route) for route in analysis.routes)),
        "speedups": tuple(speedups),
        "distribution": tuple(_distribution(route, _reach(analysis)) for route in analysis.routes),
        "signals": tuple(_reliability(quality, quality.signal == analysis.signal) for quality in analysis.signals),
    }


def _cost_curve(analysis: Analysis) -> Figure:
    """A round's time by k, in plain rounds: the break-even line of the draft model, and that of lookups."""
    points = analysis.costs.points
    looked_up = any(model_of(candidate.drafter) is None for route in analysis.routes for candidate in route.candidates)
    ways: dict[str, Any] = {"color": MUTED, "linestyle": DASHES[1], "linewidth": 1.2}
    with drawing("A round's time by the number of draft tokens, in plain rounds", WIDE) as (axes, drawn):
        for index, point in enumerate(points):
            plain, counts = point.rounds[0].median, range(len(point.rounds))
            low, middle, high = (
                [getattr(measured, name) / plain for measured in point.rounds] for name in ("p10", "median", "p90")
            )
            axes.fill_between(counts, low, high, color=SERIES[index % len(SERIES)], alpha=0.15, linewidth=0)
            axes.plot(counts, middle, **Style(index).line)
            if looked_up:
                costs = [
                    (verify.median + host.median) / plain for verify, host in zip(point.verify, point.host, strict=True)
                ]
                axes.plot(counts, [1.0, *costs[1:]], **ways)
        axes.set_ylim(bottom=0.8)
        positions(axes, analysis.costs.max_draft_tokens, "draft tokens per round, k", first=0)
        axes.set_ylabel("time over a plain round = a*(k)")
    legend = [
        Entry(swatch(Style(index).line), f"{point.context} tokens of context") for index, point in enumerate(points)
    ]
    if looked_up:
        legend.append(Entry(swatch(ways), "prompt lookup, no draft model"))
    return Figure(drawn[0], "The band covers p10 to p90 of the measured rounds.", tuple(legend), wide=True)


def _break_even(route: RouteAnalysis) -> Figure:
    """a(k) of the route's best drafter against a*(k)."""
    candidates = _of(route, route.chosen.drafter)
    counts = [candidate.num_draft_tokens for candidate in candidates]
    lengths = [candidate.acceptance_length for candidate in candidates]
    needed = [candidate.break_even for candidate in candidates]
    replayed = route.chosen.drafter == route.recorded_drafter  # alpha is that of the recorded runs' drafter
    name = f"Tokens per round of {printable(route.route)} against the break-even line"
    drawn_as, expected_as = {"color": INK, "linestyle": DASHES[1]}, {"color": MUTED, "linestyle": DASHES[2]}
    with drawing(name, PANEL) as (axes, drawn):
        above = [one > other for one, other in zip(lengths, needed, strict=True)]
        axes.fill_between(
            counts, needed, lengths, where=above, interpolate=True, color=SERIES[2], alpha=0.2, linewidth=0
        )
        axes.fill_between(
            counts,
            needed,
            lengths,
            where=[not up for up in above],
            interpolate=True,
            color=SERIES[1],
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(counts, needed, **drawn_as)
        if replayed:
            axes.plot(counts, [route.textbook[count] for count in counts], **expected_as)
        axes.plot(counts, lengths, **Style(0).line)
        axes.set_ylim(bottom=0.8)
        positions(axes, max(counts, default=0), "draft tokens per round, k")
        axes.set_ylabel("tokens per round")
    legend = (
        Entry(swatch(Style(0).line), "a(k) on your text"),
        Entry(swatch(drawn_as), "a*(k) break-even"),
        *([Entry(swatch(expected_as), "textbook tau")] if replayed else []),
    )
    return Figure(drawn[0], f"{printable(route.route)} ({printable(route.chosen.drafter)})", legend)


def _speedup(route: RouteAnalysis, styles: dict[str, Style], ceiling: float) -> Figure:
    """S(k) with intervals: one line per drafter, with a ring around the best k."""
    drafters = [drafter for drafter in styles if _of(route, drafter)]
    with drawing(f"Expected speedup of {printable(route.route)} by the number of draft tokens", PANEL) as (axes, drawn):
        axes.axhline(1, color=INK, linewidth=1)
        for index, drafter in enumerate(drafters):
            candidates = _of(route, drafter)
            aside = 0.08 * (index - (len(drafters) - 1) / 2)
            places = [candidate.num_draft_tokens + aside for candidate in candidates]
            values = [candidate.speedup.value for candidate in candidates]
            spread = [_bars(candidate.speedup) for candidate in candidates]
            axes.errorbar(
                places, values, yerr=list(zip(*spread, strict=True)), capsize=2, elinewidth=0.9, **styles[drafter].line
            )
            if drafter == route.chosen.drafter:
                best = route.chosen.num_draft_tokens + aside
                axes.plot([best], [route.chosen.speedup.value], marker="o", markersize=9, fillstyle="none", color=INK)
        axes.set_ylim(0, ceiling)
        positions(
            axes,
            max((candidate.num_draft_tokens for candidate in route.candidates), default=0),
            "draft tokens per round, k",
        )
        axes.set_ylabel("S(k), speedup")
    legend = (Entry(swatch(styles[drafter].line), printable(drafter)) for drafter in drafters)
    ring = Entry(
        swatch({"marker": "o", "markersize": 8, "fillstyle": "none", "color": INK, "linestyle": "none"}), "best"
    )
    return Figure(drawn[0], printable(route.route), (*legend, ring))


def _distribution(route: RouteAnalysis, reach: tuple[float, float]) -> Figure:
    """Cumulative distribution of the requests' speedups: expected of the best candidate, and measured."""
    expected, measured = ({"color": SERIES[0], "linestyle": dashes} for dashes in (DASHES[0], DASHES[1]))
    mark: dict[str, Any] = {"color": SERIES[1], "marker": "D", "linestyle": "none", "markersize": 5}
    with drawing(f"Speedups of single requests of {printable(route.route)}", PANEL) as (axes, drawn):
        axes.axvline(1, color=INK, linewidth=1)
        for values, look in ((route.measured.speedups, measured), (route.speedups, expected)):
            if finite := [value for value in values if math.isfinite(value)]:
                axes.ecdf(finite, **look)
        axes.plot([route.judged.p10], [0.1], **mark)
        axes.set_xlim(*reach)
        axes.set_ylim(0, 1.03)
        axes.set_yticks([0, 0.1, 0.25, 0.5, 0.75, 1], ["0", "10 %", "25 %", "50 %", "75 %", "100 %"])
        axes.set_xlabel("speedup of a request")
        axes.set_ylabel("share of requests")
    legend = (Entry(swatch(expected), "expected"), Entry(swatch(measured), "measured"), Entry(swatch(mark), "p10"))
    return Figure(drawn[0], f"{printable(route.route)}, slower: {percent(route.judged.slower)}", legend)


def _reliability(quality: SignalQuality, chosen: bool) -> Figure:
    """Reliability diagram: observed share by estimated probability; larger dots stand for more tokens."""
    most = max((tokens for _, _, tokens in quality.reliability), default=1)
    with drawing(f"Reliability of the signal {printable(quality.signal)}", PANEL) as (axes, drawn):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1)
        places, observed = ([entry[index] for entry in quality.reliability] for index in (0, 1))
        sizes = [4 + 60 * tokens / max(most, 1) for _, _, tokens in quality.reliability]
        axes.plot(places, observed, color=SERIES[0], linewidth=0.8)
        axes.scatter(places, observed, s=sizes, color=SERIES[0], alpha=0.6, linewidths=0)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("estimated probability")
        axes.set_ylabel("share accepted")
    return Figure(drawn[0], printable(quality.signal) + (", chosen" if chosen else ""))


def _of(route: RouteAnalysis, drafter: str) -> list[DraftCandidate]:
    return sorted((one for one in route.candidates if one.drafter == drafter), key=lambda one: one.num_draft_tokens)


def _bars(interval: Interval) -> tuple[float, float]:
    """Lengths of the error bar below and above the value; none for an unbounded interval, which dwarfs the rest."""
    if not (math.isfinite(interval.low) and interval.high < UNBOUNDED):
        return 0.0, 0.0
    return max(0.0, interval.value - interval.low), max(0.0, interval.high - interval.value)


def _ceiling(analysis: Analysis) -> float:
    """The top of the scale, the same for all routes, so that panels can be compared. Intervals of very few requests may
    exceed it.
    """
    speedups = [candidate.speedup for route in analysis.routes for candidate in route.candidates]
    largest = max(_only_finite([1.2, *(speedup.value for speedup in speedups)]))
    return 1.08 * max(_only_finite([largest, *(min(speedup.high, 2 * largest) for speedup in speedups)]))


def _reach(analysis: Analysis) -> tuple[float, float]:
    values = _only_finite(
        value for route in analysis.routes for value in (*route.speedups, *route.measured.speedups, route.judged.p10)
    )
    low, high = min([*values, 0.9]), max([*values, 1.1])
    return max(0.0, low - 0.05 * (high - low)), high + 0.05 * (high - low)


def _only_finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
