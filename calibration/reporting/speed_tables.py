"""Tables about time: verdicts, speedups by k and by request, predicted and measured, latency."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..statistics.results import Analysis, DraftCandidate, RouteAnalysis
from .explanations import PREDICTION_TOLERANCE
from .tables import NOTHING, Table, between, milliseconds, number, percent, printable, quantile, times


def verdict_tables(analysis: Analysis) -> tuple[Table, ...]:
    def row(entry: RouteAnalysis) -> tuple[str, ...]:
        chosen, policy = entry.judged, entry.policy
        drafts = policy.mode == "adaptive" or (policy.num_draft_tokens and policy.verdict != "off")
        counted = len(entry.speedups)
        return (
            policy.verdict.upper(),
            printable(entry.route),
            printable(chosen.drafter),
            policy.mode if drafts else "plain",
            str(entry.chosen.num_draft_tokens),
            times(chosen.speedup.value),
            between(chosen.speedup),
            times(chosen.p10),
            percent(chosen.slower),
            str(counted) if counted == entry.requests else f"{counted} of {entry.requests}",
            str(entry.missing) if entry.missing else NOTHING,
        )

    columns = ("verdict", "route", "drafter", "runs", "k", "speedup", "95 %", "p10", "slower", "requests", "missing")
    return (Table(columns, tuple(map(row, analysis.routes)), texts=4),)


def speedup_tables(analysis: Analysis) -> tuple[Table, ...]:
    def remark(entry: RouteAnalysis, candidate: DraftCandidate) -> str:
        if candidate == entry.judged:
            return "judged, but not used" if entry.policy.verdict == "off" else "chosen"
        return "best fixed k" if candidate == entry.chosen else ""

    rows = tuple(
        (
            printable(entry.route),
            printable(candidate.drafter),
            "adaptive" if candidate.adapts else str(candidate.num_draft_tokens),
            number(candidate.acceptance_length),
            number(candidate.break_even),
            times(candidate.speedup.value),
            between(candidate.speedup),
            times(candidate.p10),
            percent(candidate.slower),
            remark(entry, candidate),
        )
        for entry in analysis.routes
        for candidate in (*entry.adapting, *entry.candidates)
    )
    columns = ("route", "drafter", "k", "a(k)", "a*(k)", "S(k)", "95 %", "p10", "slower", "")
    return (Table(columns, rows, texts=2, remark=True),)


def distribution_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows = []
    for entry in analysis.routes:
        chosen, measured = entry.judged, entry.measured
        ways = (
            (
                "expected",
                chosen.drafter,
                "adaptive" if chosen.adapts else chosen.num_draft_tokens,
                entry.speedups,
                chosen.p10,
                chosen.slower,
            ),
            (
                "measured",
                entry.recorded_drafter,
                measured.num_draft_tokens,
                measured.speedups,
                quantile(measured.speedups, 0.1),
                _share_slower(measured.speedups),
            ),
        )
        for what, drafter, k, values, p10, slower in ways:
            rows.append(
                (
                    printable(entry.route),
                    what,
                    printable(drafter),
                    str(k),
                    str(len(values)),
                    times(p10),
                    times(quantile(values, 0.5)),
                    times(quantile(values, 0.9)),
                    percent(slower),
                )
            )
    columns = ("route", "", "drafter", "k", "requests", "p10", "p50", "p90", "slower")
    return (Table(columns, tuple(rows), texts=3),)


def prediction_error(entry: RouteAnalysis) -> float:
    """How far the speedup that costs and acceptance predict is from the measured one, as a share of it; NaN without."""
    measured = entry.measured
    return measured.predicted / measured.speedup.value - 1 if measured.speedup.value > 0 else math.nan


def prediction_tables(analysis: Analysis) -> tuple[Table, ...]:
    def row(entry: RouteAnalysis) -> tuple[str, ...]:
        measured, apart = entry.measured, prediction_error(entry)
        return (
            printable(entry.route),
            printable(entry.recorded_drafter),
            str(measured.num_draft_tokens),
            times(measured.predicted),
            times(measured.speedup.value),
            between(measured.speedup),
            f"{100 * apart:+.1f} %" if math.isfinite(apart) else NOTHING,
            "" if abs(apart) <= PREDICTION_TOLERANCE else f"more than {percent(PREDICTION_TOLERANCE)} apart",
        )

    columns = ("route", "drafter", "k", "predicted", "measured", "95 %", "apart", "remark")
    return (Table(columns, tuple(map(row, analysis.routes)), texts=2, remark=True),)


def latency_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows = []
    for entry in analysis.routes:
        measured = entry.measured
        for way, first, latency in (
            ("plain", measured.first_token_plain, measured.latency_plain),
            ("speculative", measured.first_token_speculative, measured.latency_speculative),
        ):
            values = map(milliseconds, (first, latency.p10, latency.p50, latency.p90, latency.p99))
            rows.append((printable(entry.route), way, str(entry.requests), *values))
    columns = ("route", "", "requests", "first token, ms", "p10, ms", "p50, ms", "p90, ms", "p99, ms")
    return (Table(columns, tuple(rows), texts=2),)


def _share_slower(speedups: Sequence[float]) -> float:
    return sum(value < 1 for value in speedups) / len(speedups) if speedups else math.nan
