"""The report's story in three figures: what a token takes, how often drafts are accepted, where a round's time goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..statistics.intervals import UNBOUNDED
from ..statistics.results import Analysis, Interval, RouteAnalysis
from ..verdicts.verdict import LEAST_REQUESTS
from .styles import Entry, Figure, Style, positions
from .svg import INK, MUTED, SERIES, STORY, drawing, swatch
from .tables import milliseconds, number, percent, printable, times

# The routes with the most requests are shown; the others are only in the tables.
MOST_ROUTES = 12
LONGEST_NAME = 44
PLAIN: dict[str, Any] = {"color": MUTED, "alpha": 0.55}
EXPECTED: dict[str, Any] = {"color": SERIES[0]}
SPREAD: dict[str, Any] = {"color": INK, "ecolor": INK, "elinewidth": 1, "capsize": 2, "fmt": "none"}
VERIFY, DRAFT, HOST = ({"color": INK, "alpha": alpha} for alpha in (0.16, 0.36, 0.7))


@dataclass(frozen=True)
class Chapter:
    """headline: what the figure shows of this analysis. words: how to read it."""

    headline: str
    words: str
    figure: Figure


def story(analysis: Analysis) -> tuple[Chapter, ...]:
    """The story's three chapters. Raises `MissingPackageError` without matplotlib."""
    biggest = sorted(analysis.routes, key=lambda one: -one.requests)[:MOST_ROUTES]
    routes = [one for one in analysis.routes if one in biggest]
    return (_cost_of_a_token(routes), _acceptance(routes), _time_of_a_round(analysis, routes))


def _cost_of_a_token(routes: list[RouteAnalysis]) -> Chapter:
    names = {f"route-{index}": _short(one.route) for index, one in enumerate(routes)}
    size = (STORY[0], 0.62 + 0.56 * max(2, len(routes)))
    with drawing("Time per token, plain and speculative, by route", size, names) as (axes, drawn):
        longest = max(max(_per_token(one, factor) for factor in (1.0, *_speedups(one))) for one in routes)
        for row, (label, one) in enumerate(zip(names, routes, strict=True)):
            axes.text(0, row - 0.26, label, va="bottom")
            plain, time = _per_token(one, 1.0), _per_token(one, one.judged.speedup.value)
            low, high = _bounds(one, one.judged.speedup)
            for place, length, end, look in ((row - 0.1, plain, plain, PLAIN), (row + 0.16, time, high, EXPECTED)):
                axes.barh(place, length, height=0.22, linewidth=0, **look)
                axes.text(min(end, longest) + 0.02 * longest, place, milliseconds(length / 1000), va="center")
            axes.errorbar([time], [row + 0.16], xerr=[[time - low], [high - time]], **SPREAD)
        axes.set_ylim(len(names) - 0.55, -0.75)
        axes.set_xlim(0, 1.2 * longest)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("ms per token behind the first; shorter is faster")
    legend = (
        Entry(swatch(PLAIN | {"linewidth": 6}), "plain"),
        Entry(swatch(EXPECTED | {"linewidth": 6}), "speculative, expected, 95 % interval"),
    )
    faster = [one for one in routes if one.policy.verdict == "on"]
    if faster:
        best = max(faster, key=lambda one: one.judged.speedup.value)
        headline = (
            f"{_short(best.route)}: {milliseconds(_per_token(best, best.judged.speedup.value) / 1000)} ms a token "
            f"instead of {milliseconds(_per_token(best, 1.0) / 1000)}"
        )
    else:
        headline = "No route is clearly faster with speculation"
        on_average = [one for one in routes if one.judged.speedup.low > 1]
        if on_average:
            best = max(on_average, key=lambda one: one.judged.speedup.value)
            sure = "not in its slow requests"
            if best.policy.verdict == "undecided":
                few = best.requests < LEAST_REQUESTS
                sure = f"from only {best.requests} requests" if few else "its slow requests are undecided"
            headline = f"{_short(best.route)}: {times(best.judged.speedup.value)} on average, but {sure}"
    words = (
        "Plain decoding: the median request. Below it: plain time divided by the speedup that calibration expects from "
        "the drafter and the schedule of the verdict. Where the interval reaches the plain bar, the gain is not "
        "certain."
    )
    return Chapter(headline, words, Figure(drawn[0], legend=legend))


def _acceptance(routes: list[RouteAnalysis]) -> Chapter:
    with drawing("Acceptance by position, a line for each route", STORY) as (axes, drawn):
        for index, route in enumerate(routes):
            axes.plot(
                range(1, len(route.acceptance) + 1), [100 * share for share in route.acceptance], **Style(index).line
            )
        axes.set_ylim(0, 103)
        positions(axes, max((len(route.acceptance) for route in routes), default=0), "position in the draft")
        axes.set_ylabel("accepted, % of reached")
    legend = tuple(Entry(swatch(Style(index).line), _short(one.route)) for index, one in enumerate(routes))
    first = sorted((one.acceptance[0], one.route) for one in routes)
    (least, worst), (most, best) = first[0], first[-1]
    headline = f"The first draft token is accepted {percent(most)} of the time on {_short(best)}"
    if len(routes) > 1:
        headline += f", {percent(least)} on {_short(worst)}"
    words = (
        "How well the draft predicts the target's tokens. A token is reached if all before it were accepted. A rising "
        "line means that the text has easy stretches: rounds that get that far tend to get further." + _drafter(routes)
    )
    return Chapter(headline, words, Figure(drawn[0], legend=legend))


def _time_of_a_round(analysis: Analysis, routes: list[RouteAnalysis]) -> Chapter:
    points = analysis.costs.points
    point = points[(len(points) - 1) // 2]
    counts = list(range(len(point.rounds)))
    parts: dict[str, tuple[dict[str, Any], list[float]]] = {
        "verify pass of the target": (VERIFY, [1000 * one.median for one in point.verify]),
        "draft passes": (DRAFT, [1000 * k * point.draft.median for k in counts]),
        "host": (HOST, [1000 * one.median for one in point.host]),
    }
    plain = 1000 * point.rounds[0].median
    shown = {name: part for name, part in parts.items() if any(part[1])}
    with drawing("A round's time by the number of draft tokens, and that of its tokens decoded plainly", STORY) as (
        axes,
        drawn,
    ):
        bottom = [0.0] * len(counts)
        for look, times in shown.values():
            axes.bar(counts, times, bottom=bottom, width=0.62, linewidth=0, **look)
            bottom = [one + other for one, other in zip(bottom, times, strict=True)]
        for index, route in enumerate(routes):
            axes.plot(*_worth(route, plain), **Style(index).line)
        positions(axes, counts[-1], "draft tokens per round, k", first=0)
        axes.set_ylabel("ms per round")
        axes.set_ylim(bottom=0)
    legend = (
        *(Entry(swatch(look | {"linewidth": 6}), name) for name, (look, _) in shown.items()),
        *(Entry(swatch(Style(index).line), _short(one.route)) for index, one in enumerate(routes)),
    )
    headline = (
        f"A round of {counts[-1]} draft tokens takes as long as "
        f"{number(point.rounds[-1].median / point.rounds[0].median)} plain rounds"
    )
    words = (
        f"Bars: where the time of a round goes, at {point.context} tokens of context. Lines: how long plain decoding "
        "takes for the tokens that such a round yields, on each route. The distance of a line above the bars is time "
        "saved; k is best where it is largest." + _drafter(routes)
    )
    return Chapter(headline, words, Figure(drawn[0], legend=legend))


def _drafter(routes: list[RouteAnalysis]) -> str:
    """A sentence if the recorded runs had another drafter than one of the verdicts, else empty."""
    recorded = routes[0].recorded_drafter
    same = all(one.judged.drafter == recorded for one in routes)
    return "" if same else f" Shown for {printable(recorded)}, which drafted the recorded runs."


def _worth(route: RouteAnalysis, plain: float) -> tuple[list[int], list[float]]:
    """(values of k, for each of them the time that plain decoding takes for a round's tokens). plain: milliseconds of a
    plain round.
    """
    lengths = {0: 1.0} | {
        one.num_draft_tokens: one.acceptance_length for one in route.candidates if one.drafter == route.recorded_drafter
    }
    return sorted(lengths), [plain * lengths[k] for k in sorted(lengths)]


def _per_token(route: RouteAnalysis, speedup: float) -> float:
    """Milliseconds per token at this speedup; 0 if the speedup is not known."""
    known = math.isfinite(speedup) and speedup > 0
    return 1000 * route.measured.latency_plain.p50 / speedup if known else 0.0


def _bounds(route: RouteAnalysis, speedup: Interval) -> tuple[float, float]:
    """(lower, upper) bound of the time per token; both are the time itself if the interval is unbounded."""
    time = _per_token(route, speedup.value)
    if not (0 < speedup.low <= speedup.value <= speedup.high < UNBOUNDED):
        return time, time
    return _per_token(route, speedup.high), _per_token(route, speedup.low)


def _speedups(route: RouteAnalysis) -> tuple[float, ...]:
    """The speedups that a figure must have room for; the interval of few requests may exceed it."""
    shown = route.judged.speedup
    return (shown.value, max(shown.low, 0.6 * shown.value))


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
