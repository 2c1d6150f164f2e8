"""The tables of an analysis, as formatted cells: the report and the terminal show the same ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..statistics.intervals import UNBOUNDED, quantiles
from ..statistics.results import Analysis, Bucket, DraftCandidate, Interval, RouteAnalysis
from ..statistics.sample_size import FEW, USUAL

NOTHING = "-"
# Predicted and measured speedups that differ by more than this share show that costs or traces do not fit the runs.
PREDICTION_TOLERANCE = 0.05


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells.

    The first `texts` columns hold words, and so does the last one if `remark` is set; the others hold numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    remark: bool = False

    @classmethod
    def of(cls, columns: str, rows: Iterable[Sequence[object]], texts: int = 1, remark: bool = False) -> Table:
        """columns: their names, with a bar between them. Cells are made printable."""
        made = tuple(tuple(printable(str(cell)) for cell in row) for row in rows)
        return cls(tuple(columns.split("|")), made, texts, remark)


def verdict_tables(analysis: Analysis) -> tuple[Table, ...]:
    def row(entry: RouteAnalysis) -> tuple[object, ...]:
        judged, policy, counted = entry.judged, entry.policy, len(entry.speedups)
        drafts = policy.mode == "adaptive" or (policy.num_draft_tokens and policy.verdict != "off")
        runs, k = policy.mode if drafts else "plain", entry.chosen.num_draft_tokens
        requests = counted if counted == entry.requests else f"{counted} of {entry.requests}"
        return (
            policy.verdict.upper(),
            entry.route,
            judged.drafter,
            runs,
            k,
            *speed(judged),
            requests,
            entry.missing or "-",
        )

    columns = "verdict|route|drafter|runs|k|speedup|95 %|p10|slower|requests|missing"
    return (Table.of(columns, map(row, analysis.routes), texts=4),)


def acceptance_tables(analysis: Analysis) -> tuple[Table, ...]:
    def shares(first: str, name: str, values: Sequence[tuple[float, ...]]) -> Table:
        longest = max(map(len, values), default=0)
        columns = "|".join([first, *(name.format(place, "s" * (place > 1)) for place in range(1, longest + 1))])
        padded = ([*map(percent, one), *[NOTHING] * (longest - len(one))] for one in values)
        return Table.of(columns, ((route, *cells) for route, cells in zip(routes, padded, strict=True)))

    routes = [entry.route for entry in analysis.routes]
    textbook = (
        (entry.route, one.drafter, one.num_draft_tokens, *map(number, (entry.alpha, tau, a)), f"{a - tau:+.2f}")
        for entry in analysis.routes
        for one in entry.candidates
        if one.drafter == entry.recorded_drafter and one.num_draft_tokens < len(entry.textbook)
        for tau, a in ((entry.textbook[one.num_draft_tokens], one.acceptance_length),)
    )
    return (
        shares("route", "token {}", [entry.acceptance for entry in analysis.routes]),
        Table.of("route|drafter|k|alpha|textbook tau|a(k)|difference", textbook, texts=2),
        shares("rounds of", "{} token{}", [entry.per_round for entry in analysis.routes]),
    )


def cost_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows = []
    for point in analysis.costs.points:
        plain = point.rounds[0].median
        for k, (whole, verify, host) in enumerate(zip(point.rounds, point.verify, point.host, strict=True)):
            spread = f"{milliseconds(whole.p10)} to {milliseconds(whole.p90)}"
            looked_up = (verify.median + host.median) / plain if k else 1.0
            parts = map(milliseconds, (point.draft.median, verify.median, host.median))
            ratios = number(whole.median / plain), number(looked_up)
            rows.append((point.context, k, milliseconds(whole.median), spread, *ratios, *parts))
    columns = "context|k|round, ms|p10 to p90|a*(k) model|a*(k) lookup|d, ms|v(k+1), ms|h, ms"
    return (Table.of(columns, rows, texts=0),)


def speedup_tables(analysis: Analysis) -> tuple[Table, ...]:
    def remark(entry: RouteAnalysis, candidate: DraftCandidate) -> str:
        if candidate == entry.judged:
            return "judged, but not used" if entry.policy.verdict == "off" else "chosen"
        return "best fixed k" if candidate == entry.chosen else ""

    rows = (
        (entry.route, one.drafter, k_of(one), number(one.acceptance_length), number(one.break_even), *speed(one), note)
        for entry in analysis.routes
        for one in (*entry.adapting, *entry.candidates)
        for note in (remark(entry, one),)
    )
    return (Table.of("route|drafter|k|a(k)|a*(k)|S(k)|95 %|p10|slower|", rows, texts=2, remark=True),)


def distribution_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows: list[tuple[object, ...]] = []
    for entry in analysis.routes:
        judged, measured = entry.judged, entry.measured
        slower = sum(one < 1 for one in measured.speedups) / len(measured.speedups) if measured.speedups else math.nan
        ways = (
            ("expected", judged.drafter, k_of(judged), entry.speedups, judged.p10, judged.slower),
            ("measured", entry.recorded_drafter, measured.num_draft_tokens, measured.speedups, None, slower),
        )
        for what, drafter, k, values, p10, share in ways:
            found = quantiles(values) if values else None
            p50, p90 = (found.p50, found.p90) if found else (math.nan, math.nan)
            p10 = p10 if p10 is not None else found.p10 if found else math.nan
            rows.append((entry.route, what, drafter, k, len(values), *map(times, (p10, p50, p90)), percent(share)))
    return (Table.of("route||drafter|k|requests|p10|p50|p90|slower", rows, texts=3),)


def length_tables(analysis: Analysis) -> tuple[Table, ...]:
    def bucket_row(route: str, bucket: Bucket) -> tuple[object, ...]:
        span = f"{bucket.low} or more" if bucket.high is None else f"{bucket.low} to {bucket.high - 1}"
        says = "says little" if bucket.requests < FEW else "fewer than usual" if bucket.requests < USUAL else ""
        length = bucket.acceptance_length
        return route, bucket.kind, span, bucket.requests, number(length.value), between(length), says

    requests = (
        (one.route, one.requests, one.tokens, one.rounds, *map(number, vars(one.per_request).values()))
        for one in analysis.routes
    )
    buckets = (bucket_row(entry.route, bucket) for entry in analysis.routes for bucket in entry.buckets)
    return (
        Table.of("route|requests|tokens|rounds|p10|p50|p90|p99", requests),
        Table.of("route|length of|tokens|requests|a|95 %|remark", buckets, texts=3, remark=True),
    )


def prediction_error(entry: RouteAnalysis) -> float:
    """How far the speedup that costs and acceptance predict is from the measured one, as a share of it; NaN without."""
    measured = entry.measured
    return measured.predicted / measured.speedup.value - 1 if measured.speedup.value > 0 else math.nan


def prediction_tables(analysis: Analysis) -> tuple[Table, ...]:
    def row(entry: RouteAnalysis) -> tuple[object, ...]:
        one, apart = entry.measured, prediction_error(entry)
        speedups = times(one.predicted), times(one.speedup.value), between(one.speedup)
        away = f"{100 * apart:+.1f} %" if math.isfinite(apart) else NOTHING
        far = "" if abs(apart) <= PREDICTION_TOLERANCE else f"more than {percent(PREDICTION_TOLERANCE)} apart"
        return entry.route, entry.recorded_drafter, one.num_draft_tokens, *speedups, away, far

    columns = "route|drafter|k|predicted|measured|95 %|apart|remark"
    return (Table.of(columns, map(row, analysis.routes), texts=2, remark=True),)


def signal_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows = [
        (
            *(one.signal, percent(one.error, 1), percent(one.survival_error, 1), number(one.auc, 3)),
            *(sum(tokens for *_, tokens in one.reliability), "chosen" if one.signal == analysis.signal else ""),
        )
        for one in analysis.signals
    ]
    return (Table.of("signal|error|error, product|AUC|tokens|remark", rows, remark=True),) if rows else ()


def latency_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows = (
        (entry.route, way, entry.requests, *map(milliseconds, (first, *vars(latency).values())))
        for entry in analysis.routes
        for one in (entry.measured,)
        for way, first, latency in (
            ("plain", one.first_token_plain, one.latency_plain),
            ("speculative", one.first_token_speculative, one.latency_speculative),
        )
    )
    return (Table.of("route||requests|first token, ms|p10, ms|p50, ms|p90, ms|p99, ms", rows, texts=2),)


def provenance_tables(analysis: Analysis) -> tuple[Table, ...]:
    routes, threads = analysis.routes, analysis.costs.threads
    count = f"{threads} thread{'s' * (threads != 1)}" if threads else "its own number of threads"
    facts = {
        "bundle": analysis.bundle,
        "command": analysis.command,
        "made": analysis.made,
        "host": analysis.host,
        "engine": f"{analysis.engine}, {count}",
        "temperature": f"{analysis.temperature:g}",
        "requests": sum(entry.requests for entry in routes),
        "tokens": f"{sum(entry.tokens for entry in routes)}, at most {analysis.max_new_tokens} per request",
        "rounds": sum(entry.rounds for entry in routes),
        "draft tokens": f"at most {analysis.max_draft_tokens} per round",
        "floor of p10": times(analysis.floor),
        "costs made": f"{analysis.costs.made} on {analysis.costs.host}",
    }
    return (Table.of("what|value", facts.items(), texts=2),)


def speed(one: DraftCandidate) -> tuple[str, ...]:
    return times(one.speedup.value), between(one.speedup), times(one.p10), percent(one.slower)


def k_of(one: DraftCandidate) -> str:
    return "adaptive" if one.adapts else str(one.num_draft_tokens)


def printable(text: str) -> str:
    """`text` with control, direction-changing and non-text characters replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def times(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else NOTHING


def number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else NOTHING


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %" if math.isfinite(value) else NOTHING


def between(interval: Interval) -> str:
    known = math.isfinite(interval.low) and interval.high < UNBOUNDED
    return f"{number(interval.low)} to {number(interval.high)}" if known else "unknown"


def milliseconds(seconds: float) -> str:
    """`seconds` in milliseconds, with three significant digits or more."""
    value = 1000 * seconds
    return number(value, 3 if value < 1 else 2 if value < 100 else 1)
