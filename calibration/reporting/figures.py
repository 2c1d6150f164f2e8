"""The report's figures, drawn by matplotlib: what a token takes, how often drafts are accepted, where time goes."""

from __future__ import annotations

import io
import math
import warnings
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import MissingPackageError
from ..statistics.intervals import UNBOUNDED
from ..statistics.results import Analysis, Interval, RouteAnalysis
from .tables import milliseconds, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The routes with the most requests are shown; the others are only in the tables.
MAX_ROUTES = 12
LONGEST_NAME = 44
MARKERS = "os^Dv"
# Names of routes are no formulas; texts stay texts, in the reader's own fonts.
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specexport",
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.4,
    "lines.markersize": 4,
}


@dataclass(frozen=True)
class Figure:
    """image: a data URL, since the page loads nothing. words: how to read it."""

    title: str
    words: str
    image: str


def figures(analysis: Analysis) -> tuple[Figure, ...]:
    """Raises `MissingPackageError` without matplotlib."""
    biggest = sorted(analysis.routes, key=lambda one: -one.requests)[:MAX_ROUTES]
    routes = [one for one in analysis.routes if one in biggest]
    story = _cost_of_a_token(routes), _acceptance(routes), _time_of_a_round(analysis, routes)
    return *story, *(_speedup(one) for one in routes)


@contextmanager
def drawing(width: float = 6.0, height: float = 3.2) -> Iterator[tuple[Axes, list[str]]]:
    """Axes to draw on, in inches. The image, a data URL, is appended to the list when the block ends.

    Raises `MissingPackageError` without matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise MissingPackageError("matplotlib", "calibrate") from None

    drawn: list[str] = []
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of characters that matplotlib's own font lacks
        canvas = Canvas(figsize=(width, height), layout="constrained")
        axes = canvas.subplots()
        yield axes, drawn
        if handles := axes.get_legend_handles_labels()[0]:
            canvas.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    drawn.append("data:image/svg+xml;base64," + b64encode(buffer.getvalue()).decode())


def _cost_of_a_token(routes: Sequence[RouteAnalysis]) -> Figure:
    with drawing(height=1.2 + 0.5 * len(routes)) as (axes, drawn):
        for row, one in enumerate(routes):
            speedup = one.judged.speedup
            plain, time = _per_token(one, 1.0), _per_token(one, speedup.value)
            low, high = _bounds(one, speedup)
            looks: tuple[dict[str, Any], ...] = ({"color": "0.7"}, {"color": "C0"})
            ways = zip((row - 0.2, row + 0.2), (plain, time), (plain, high), looks, strict=True)
            for place, length, end, look in ways:
                axes.barh(place, length, height=0.36, **look)
                axes.text(end, place, f"  {milliseconds(length / 1000)}", va="center")
            axes.errorbar([time], [row + 0.2], xerr=[[time - low], [high - time]], color="black", capsize=2)
        axes.set_yticks(range(len(routes)), [_short(one.route) for one in routes])
        axes.invert_yaxis()
        axes.set_xlabel("ms per token after the first; shorter is faster")
    words = (
        "Grey: plain decoding, the median request. Blue: that time divided by the speedup that calibration expects, "
        "with its 95 % interval. Where the interval reaches the grey bar, the gain is not certain."
    )
    return Figure("Time per token", words, drawn[0])


def _acceptance(routes: Sequence[RouteAnalysis]) -> Figure:
    with drawing() as (axes, drawn):
        for index, one in enumerate(routes):
            shares = [100 * share for share in one.acceptance]
            axes.plot(range(1, len(shares) + 1), shares, **_line(index, one.route))
        axes.set_ylim(0, 103)
        _positions(axes, "position in the draft")
        axes.set_ylabel("accepted, % of reached")
    words = (
        "How well the draft predicts the target's tokens. A token is reached if all before it were accepted. A rising "
        "line means that the text has easy stretches: rounds that get that far tend to get further." + _drafter(routes)
    )
    return Figure("Acceptance by position", words, drawn[0])


def _time_of_a_round(analysis: Analysis, routes: Sequence[RouteAnalysis]) -> Figure:
    points = analysis.costs.points
    point = points[(len(points) - 1) // 2]
    counts = list(range(len(point.rounds)))
    parts = {
        "verify pass of the target": [one.median for one in point.verify],
        "draft passes": [k * point.draft.median for k in counts],
        "host": [one.median for one in point.host],
    }
    with drawing() as (axes, drawn):
        bottom = [0.0] * len(counts)
        for shade, (name, seconds) in zip(("0.85", "0.65", "0.4"), parts.items(), strict=True):
            if any(seconds):
                heights = [1000 * one for one in seconds]
                axes.bar(counts, heights, bottom=bottom, color=shade, width=0.62, label=name)
                bottom = [one + other for one, other in zip(bottom, heights, strict=True)]
        for index, one in enumerate(routes):
            lengths = {0: 1.0} | {
                of.num_draft_tokens: of.acceptance_length for of in one.candidates if of.drafter == one.recorded_drafter
            }
            worth = [1000 * point.rounds[0].median * lengths[k] for k in sorted(lengths)]
            axes.plot(sorted(lengths), worth, **_line(index, one.route))
        _positions(axes, "draft tokens per round, k")
        axes.set_ylabel("ms per round")
        axes.set_ylim(bottom=0)
    words = (
        f"Bars: where the time of a round goes, at {point.context} tokens of context. Lines: how long plain decoding "
        "takes for the tokens that such a round yields, on each route. The distance of a line above the bars is time "
        "saved; k is best where it is largest." + _drafter(routes)
    )
    return Figure("The time of a round", words, drawn[0])


def _speedup(route: RouteAnalysis) -> Figure:
    """S(k) with intervals, a line for each drafter."""
    with drawing() as (axes, drawn):
        axes.axhline(1, color="black", linewidth=1)
        for index, drafter in enumerate(sorted({one.drafter for one in route.candidates})):
            found = sorted((one.num_draft_tokens, one.speedup) for one in route.candidates if one.drafter == drafter)
            values = [speedup.value for _, speedup in found]
            bars = [_bars(speedup) for _, speedup in found]
            spread: dict[str, Any] = {"yerr": list(zip(*bars, strict=True)), "capsize": 2, "elinewidth": 0.9}
            axes.errorbar([k for k, _ in found], values, **spread, **_line(index, drafter))
        axes.set_ylim(bottom=0)
        _positions(axes, "draft tokens per round, k")
        axes.set_ylabel("S(k), speedup")
    name, best = _short(route.route), route.chosen
    words = f"Best fixed k: {best.num_draft_tokens} by {printable(best.drafter)}. The line at 1 is plain decoding."
    return Figure(f"Expected speedup of {name}", words, drawn[0])


def _drafter(routes: Sequence[RouteAnalysis]) -> str:
    """A sentence if the recorded runs had another drafter than one of the verdicts, else empty."""
    recorded = routes[0].recorded_drafter
    same = all(one.judged.drafter == recorded for one in routes)
    return "" if same else f" Shown for {printable(recorded)}, which drafted the recorded runs."


def _line(index: int, name: str) -> dict[str, Any]:
    """The look of a series; matplotlib leaves names that begin with _ out of legends."""
    shown = _short(name)
    label = f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown
    style = ("-", "--", ":")[index // 10 % 3]
    return {"color": f"C{index % 10}", "linestyle": style, "marker": MARKERS[index % len(MARKERS)], "label": label}


def _positions(axes: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label)


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


def _bars(interval: Interval) -> tuple[float, float]:
    """Lengths of the error bar below and above the value; none for an unbounded interval, which dwarfs the rest."""
    if not (math.isfinite(interval.low) and interval.high < UNBOUNDED):
        return 0.0, 0.0
    return max(0.0, interval.value - interval.low), max(0.0, interval.high - interval.value)


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
