"""The limits for the measurements, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .measurements import Measurements
from .measurements.bandwidth import floor_ms
from .measurements.rounds import RoundTime

MAX_LAUNCHES = MAX_WAITS = 1
# Python alone takes 27 (a replayed greedy round over bindings that do nothing, on a busy 2-core host); the launch of a
# graph of 1300 nodes and the wake-up are on top.
MAX_HOST_US = 80
MAX_OVER_PARTS = 1.05
# For an 8B model in fp16.
MIN_OF_FLOOR = 0.85
MOST_OVER_WIDTH_1 = 1.15
WIDEST = 8


@dataclass(frozen=True)
class Measure:
    """One limit and its measurement. at_most: whether `limit` is an upper limit, else a lower one. measured: the worst
    of all values that it applies to. where: which one that is.
    """

    name: str
    at_most: bool
    limit: float
    measured: float
    unit: str
    where: str

    @property
    def met(self) -> bool:
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit


@dataclass(frozen=True)
class Reads:
    """Bytes that a pass of one token reads: of weights, and per row of the cache. bandwidth: bytes per second."""

    weights: int
    cache_row: int
    bandwidth: float

    def floor(self, span: int) -> float:
        return floor_ms(self.weights, self.cache_row * span, self.bandwidth)


def judge(found: Measurements, reads: Reads, asked_speed: bool) -> list[Measure]:
    """Compare measurements with their limits. asked_speed: whether the speeds of single passes have limits for this
    shape and precision.
    """
    measures = list(_of_rounds(found))
    if asked_speed:
        measures += [*_of_the_floor(found, reads), *_of_widths(found)]
    return measures


def _of_rounds(found: Measurements) -> Iterator[Measure]:
    if not found.rounds:
        return
    most = max(found.rounds, key=lambda round: round.counts.launches)
    yield Measure("host launches a round", True, MAX_LAUNCHES, most.counts.launches, "", _round(most))
    most = max(found.rounds, key=lambda round: round.counts.waits)
    yield Measure("host waits a round", True, MAX_WAITS, most.counts.waits, "", _round(most))
    most = max(found.rounds, key=lambda round: round.counts.others)
    yield Measure("other calls of the host a round", True, 0, most.counts.others, "", _round(most))
    most = max(found.rounds, key=lambda round: round.host)
    yield Measure("host time a round", True, MAX_HOST_US, most.host * 1e3, "us", _round(most))
    most = max(found.rounds, key=lambda round: round.over_parts)
    yield Measure("round over the sum of its passes", True, MAX_OVER_PARTS, most.over_parts, "x", _round(most))


def _of_the_floor(found: Measurements, reads: Reads) -> Iterator[Measure]:
    """The limit on plain rounds, timed on the host; each is a pass of width 1 and the selection of a token."""
    shares = {
        round.span: reads.floor(round.span) / round.wall.median
        for round in found.rounds
        if round.k == 0 and round.rule == "greedy"
    }
    if shares:
        span = min(shares, key=shares.__getitem__)
        yield Measure("bandwidth floor over plain decoding", False, MIN_OF_FLOOR, shares[span], "x", f"span {span}")


def _of_widths(found: Measurements) -> Iterator[Measure]:
    times = {(entry.width, entry.span): entry.ms.median for entry in found.passes if entry.role == "target"}
    ratios = {(width, span): ms / times[1, span] for (width, span), ms in times.items() if 1 < width <= WIDEST}
    if ratios:
        width, span = max(ratios, key=ratios.__getitem__)
        yield Measure(
            f"width 2 to {WIDEST} over width 1",
            True,
            MOST_OVER_WIDTH_1,
            ratios[width, span],
            "x",
            f"width {width}, span {span}",
        )


def _round(round: RoundTime) -> str:
    return f"{round.rule}, k {round.k}, span {round.span}"
