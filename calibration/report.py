"""An analysis in Markdown: the verdicts in words, then the tables. docs/when-it-pays.md explains how to read it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from ..atomic import output_errors, temporary_file, write_whole
from ..errors import ParameterError
from .statistics.results import Analysis, DraftCandidate, RouteAnalysis
from .tables import NOTHING, between, milliseconds, number, percent, printable, table, times
from .verdicts.verdict import BETTER_BY, MIN_REQUESTS, SHORTEST_RESPONSE, on_these

# Predicted and measured speedups that differ by more than this share show that costs or traces do not fit the runs.
PREDICTION_TOLERANCE = 0.05


def check_report(path: Path) -> None:
    """Check before a long run that the report can be written to `path`. Raises `ParameterError`."""
    if path.suffix != ".md" or path.is_dir():
        raise ParameterError(
            f"report is {path}; it must be a .md file, since it is Markdown (--json is JSON)", "report"
        )
    try:
        with temporary_file(path, b""):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise ParameterError(
            f"report is {path}, which cannot be written: {reason}; give another path", "report"
        ) from None


def write_report(analysis: Analysis, path: Path) -> None:
    with output_errors("choose another path", path):
        write_whole(path, render(analysis).encode())


def render(analysis: Analysis) -> str:
    requests = sum(one.requests for one in analysis.routes)
    return "\n\n".join(
        (
            f"# {answer(analysis)}",
            printable(f"{analysis.bundle}: {requests} requests on {analysis.host}, {analysis.made[:16]}"),
            verdicts(analysis),
            *(f"## {title}\n\n{section(analysis)}" for title, section in SECTIONS.items()),
            "",
        )
    )


def answer(analysis: Analysis) -> str:
    """One line that says whether speculation pays."""
    verdicts = [entry.policy.verdict for entry in analysis.routes]
    on, undecided, count = verdicts.count("on"), verdicts.count("undecided"), len(verdicts)
    shown = {entry.route: on_these(entry.policy, entry.judged, analysis.floor) for entry in analysis.routes}
    clear = [entry for entry in analysis.routes if shown[entry.route]]
    if undecided == count and len({shown[entry.route] for entry in clear}) == 1:
        which = f" on {len(clear)} of {count} routes" if len(clear) < count else ""
        fewest, most = min(entry.missing for entry in clear), max(entry.missing for entry in clear)
        more = f"{most}" if fewest == most else f"{fewest} to {most}"
        each = " of each route" if len(clear) > 1 else ""
        return f"{shown[clear[0].route]} on these requests{which}; {more} more{each} would settle it"
    if undecided == count:
        few = all(one.policy.evidence and one.policy.evidence.requests < MIN_REQUESTS for one in analysis.routes)
        open_ = "Too few requests to decide" if few else "Undecided"
        return open_ if count == 1 else f"{open_} on all {count} routes"
    if count == 1:
        return "Speculation pays" if on else "Speculation does not pay"
    return f"Speculation pays on {on} of {count} routes{f', {undecided} undecided' if undecided else ''}"


def verdicts(analysis: Analysis) -> str:
    def row(entry: RouteAnalysis) -> tuple[object, ...]:
        judged, policy, counted = entry.judged, entry.policy, len(entry.speedups)
        drafts = policy.mode == "adaptive" or (policy.num_draft_tokens and policy.verdict != "off")
        runs, k = policy.mode if drafts else "plain", entry.chosen.num_draft_tokens
        requests = counted if counted == entry.requests else f"{counted} of {entry.requests}"
        drafted = (policy.verdict.upper(), entry.route, judged.drafter, runs, k)
        return *drafted, *_speed(judged), requests, entry.missing or NOTHING

    columns = "verdict|route|drafter|runs|k|speedup|95 %|p10|slower|requests|missing"
    notes = [
        f"- {one.policy.verdict.upper()} {printable(one.route)}: {printable(one.words)}" for one in analysis.routes
    ]
    notes += [f"- {_mispredicted(entry)}" for entry in analysis.routes if _mispredicts(entry)]
    notes += [f"- {printable(analysis.unnamed)}"] if analysis.unnamed else []
    legend = (
        "Speedups are relative to plain decoding, without the prefill. Nine requests in ten exceed p10, for which "
        f"answers of fewer than {SHORTEST_RESPONSE} tokens do not count."
    )
    return "\n".join(notes) + f"\n\n{table(columns, map(row, analysis.routes), words=4)}\n\n{legend}"


def _acceptance(analysis: Analysis) -> str:
    rows = ((one.route, one.recorded_drafter, ", ".join(map(percent, one.acceptance))) for one in analysis.routes)
    return (
        "Of the rounds that reached a draft token (all before it were accepted), the share that accepted it.\n\n"
        + table("route|drafter|by position, from the first", rows, words=3)
        + _confidence(analysis)
    )


def _confidence(analysis: Analysis) -> str:
    if (estimate := analysis.estimate) is None:
        return ""
    used = "ends drafts early" if analysis.reads_confidence else "does not end drafts early, which would be slower"
    return (
        f"\n\nThe draft's confidence {used}. On requests that it was not fitted on, the acceptance that it tells is "
        f"off by {percent(estimate.error, 1)} (expected calibration error). Its AUC is {number(estimate.auc, 3)}: how "
        "well it separates accepted from rejected tokens; 0.5 is guessing."
    )


def _costs(analysis: Analysis) -> str:
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
    prefill = analysis.costs.target_prefill, analysis.costs.draft_prefill
    target, draft = (f"{1 / seconds:,.0f} tokens/s" if seconds > 0 else "none" for seconds in prefill)
    return (
        "A round drafts k tokens (k draft passes of d each, or a lookup), checks them in a target pass over k + 1 "
        "tokens, v(k+1), and takes h on the host. The break-even a*(k) is its time divided by that of a plain round.\n"
        f"Prefill: target {target}, draft {draft}.\n\n" + table(columns, rows, words=0)
    )


def _speedups(analysis: Analysis) -> str:
    def remark(entry: RouteAnalysis, candidate: DraftCandidate) -> str:
        if candidate == entry.judged:
            return "judged, but not used" if entry.policy.verdict == "off" else "chosen"
        return "best fixed k" if candidate == entry.chosen else ""

    rows = (
        (*drafted, number(one.acceptance_length), number(one.break_even), *_speed(one), remark(entry, one))
        for entry in analysis.routes
        for one in (*entry.adapting, *entry.candidates)
        for drafted in ((entry.route, one.drafter, "adaptive" if one.adapts else one.num_draft_tokens),)
    )
    sampled = " When sampling, acceptance is partly chance, and replays use the recorded outcomes."
    return (
        "S(k) = a(k) / a*(k), with its 95 % interval, resampled by request. All are replayed from the same recorded "
        "runs, so the best of many looks slightly too good by chance. The first drafter is kept unless another is "
        f"{100 * (BETTER_BY - 1):.0f} % better and surely faster.{sampled if analysis.temperature else ''}\n\n"
        + table("route|drafter|k|a(k)|a*(k)|S(k)|95 %|p10|slower|remark", rows, words=2)
    )


def _prediction_error(entry: RouteAnalysis) -> float:
    """How far the speedup that costs and acceptance predict is from the measured one, as a share of it; NaN without."""
    measured = entry.measured
    return measured.predicted / measured.speedup.value - 1 if measured.speedup.value > 0 else math.nan


def _mispredicts(entry: RouteAnalysis) -> bool:
    """Whether the costs predict another speedup than was measured, by more than either is exact to."""
    measured = entry.measured
    inside = measured.speedup.low <= measured.predicted <= measured.speedup.high
    return abs(_prediction_error(entry)) > PREDICTION_TOLERANCE and not inside


def _mispredicted(entry: RouteAnalysis) -> str:
    measured = entry.measured
    return (
        f"{printable(entry.route)}: {printable(entry.recorded_drafter)} with k = {measured.num_draft_tokens} was "
        f"predicted at {times(measured.predicted)} and measured at {times(measured.speedup.value)}: measure again on a "
        "quiet host before you rely on a close verdict"
    )


def _measured(analysis: Analysis) -> str:
    def row(entry: RouteAnalysis) -> tuple[object, ...]:
        one, error = entry.measured, _prediction_error(entry)
        speedups = times(one.predicted), times(one.speedup.value), between(one.speedup)
        apart = f"{100 * error:+.1f} %" if math.isfinite(error) else NOTHING
        far = "" if abs(error) <= PREDICTION_TOLERANCE else f"more than {percent(PREDICTION_TOLERANCE)} apart"
        return entry.route, entry.recorded_drafter, one.num_draft_tokens, *speedups, apart, far

    latencies = (
        (entry.route, way, *map(milliseconds, (first, *vars(latency).values())))
        for entry in analysis.routes
        for one in (entry.measured,)
        for way, first, latency in (
            ("plain", one.first_token_plain, one.latency_plain),
            ("speculative", one.first_token_speculative, one.latency_speculative),
        )
    )
    return "\n\n".join(
        (
            "The same runs twice: predicted from costs and traces, and measured, plain and speculative in turn. If "
            f"they differ by more than {percent(PREDICTION_TOLERANCE)}, the costs do not fit the runs (other load, "
            "clock speed or lengths). To confirm other drafters and k, run specexport bench on other prompts.",
            table("route|drafter|k|predicted|measured|95 %|apart|remark", map(row, analysis.routes), words=2),
            "Median time to the first token, and time per token after it; compare only within a pair of rows.",
            table("route|way|first token, ms|p10, ms|p50, ms|p90, ms|p99, ms", latencies, words=2),
        )
    )


def _provenance(analysis: Analysis) -> str:
    routes, threads = analysis.routes, analysis.costs.threads
    count = f"{threads} thread{'s' * (threads != 1)}" if threads else "as many threads as it chooses"
    facts = {
        "bundle": analysis.bundle,
        "command": analysis.command,
        "made": analysis.made,
        "host": analysis.host,
        "engine": f"{analysis.engine}, {count}",
        "temperature": f"{analysis.temperature:g}",
        "tokens": f"{sum(entry.tokens for entry in routes)}, at most {analysis.max_new_tokens} per request",
        "rounds": sum(entry.rounds for entry in routes),
        "draft tokens": f"at most {analysis.max_draft_tokens} per round",
        "floor of p10": times(analysis.floor),
        "costs made": f"{analysis.costs.made} on {analysis.costs.host}",
    }
    return table("what|value", facts.items(), words=2)


SECTIONS: dict[str, Callable[[Analysis], str]] = {
    "Acceptance by position": _acceptance,
    "Cost of a round": _costs,
    "Speedup by k": _speedups,
    "Measured speedup and latency": _measured,
    "How it was measured": _provenance,
}


def _speed(one: DraftCandidate) -> tuple[str, ...]:
    return times(one.speedup.value), between(one.speedup), times(one.p10), percent(one.slower)
