"""An analysis as sections of prose and tables. The report and the summary both show these, so they cannot disagree."""

from __future__ import annotations

from collections.abc import Callable

from ..statistics.results import Analysis, RouteAnalysis
from ..statistics.sample_size import what_samples_tell
from ..verdicts.verdict import LEAST_REQUESTS, SHORTEST_RESPONSE, on_these
from .explanations import PREDICTION_TOLERANCE, SAMPLED, TITLES, explanation
from .round_tables import acceptance_tables, cost_tables, length_tables, signal_tables
from .speed_tables import (
    distribution_tables,
    latency_tables,
    prediction_error,
    prediction_tables,
    speedup_tables,
    verdict_tables,
)
from .tables import Decision, Section, Table, between, printable, rate, times

Tables = Callable[[Analysis], tuple[Table, ...]]


def sections(analysis: Analysis) -> tuple[Section, ...]:
    """The sections, in the order in which they are shown: verdicts first, how they were measured last."""
    findings = _findings(analysis)
    tables: dict[str, Tables] = {
        "verdicts": verdict_tables,
        "acceptance": acceptance_tables,
        "costs": cost_tables,
        "speedups": speedup_tables,
        "distribution": distribution_tables,
        "lengths": length_tables,
        "predicted": prediction_tables,
        "signals": signal_tables,
        "latency": latency_tables,
        "provenance": _provenance_tables,
    }
    return tuple(
        Section(
            key=key,
            title=TITLES[key],
            words=explanation(key, analysis),
            findings=findings.get(key, ()),
            tables=of_section(analysis),
            decided=_decisions(analysis) if key == "verdicts" else (),
        )
        for key, of_section in tables.items()
    )


def _decisions(analysis: Analysis) -> tuple[Decision, ...]:
    return tuple(
        Decision(
            entry.policy.verdict.upper(),
            printable(entry.route),
            printable(entry.words),
            times(entry.judged.speedup.value),
            between(entry.judged.speedup),
        )
        for entry in analysis.routes
    )


def answer(analysis: Analysis) -> str:
    """One line that says whether speculation pays."""
    verdicts = [entry.policy.verdict for entry in analysis.routes]
    on, open_ones, all_of_them = verdicts.count("on"), verdicts.count("undecided"), len(verdicts)
    undecided = "Undecided"
    clear = [entry for entry in analysis.routes if on_these(entry.policy, entry.judged, analysis.floor)]
    words = {on_these(entry.policy, entry.judged, analysis.floor) for entry in clear}
    if clear and open_ones == all_of_them and len(words) == 1:
        which = f" on {len(clear)} of {all_of_them} routes" if len(clear) < all_of_them else ""
        more = max(entry.missing for entry in clear)
        each = " of each route" if len(clear) > 1 else ""
        return f"{words.pop()} on these requests{which}; {more} more{each} make{'s' * (more == 1)} it a verdict"
    if all(one.policy.evidence and one.policy.evidence.requests < LEAST_REQUESTS for one in analysis.routes):
        undecided = "Too few requests to decide"
    if all_of_them == 1:
        return {"on": "Speculation pays", "off": "Speculation does not pay"}.get(verdicts[0], undecided)
    if open_ones == all_of_them:
        return f"{undecided} on all {open_ones} routes"
    if on == all_of_them:
        return f"Speculation pays on all {on} routes"
    if not on and not open_ones:
        return f"Speculation pays on none of {all_of_them} routes"
    rest = f", {open_ones} undecided" if open_ones else ""
    return f"Speculation pays on {on} of {all_of_them} routes{rest}"


def _findings(analysis: Analysis) -> dict[str, tuple[str, ...]]:
    """Sentences about this analysis, by the section that they belong to."""
    costs = analysis.costs
    prefill = f"Prefill: target {rate(costs.target_prefill)}, draft {rate(costs.draft_prefill)}."
    return {
        "verdicts": (
            *(f"{printable(entry.route)}: {_samples(entry)}" for entry in analysis.routes),
            *(_missed(entry) for entry in analysis.routes if _misses(entry)),
            *([printable(analysis.unnamed)] if analysis.unnamed else []),
        ),
        "costs": (prefill,),
        "signals": (f"Chosen: {analysis.signal or 'none'}.",) if analysis.signals else (),
        "provenance": (SAMPLED,) if analysis.temperature else (),
    }


def _misses(entry: RouteAnalysis) -> bool:
    """Whether the costs predict another speedup than was measured, by more than either is exact to."""
    measured = entry.measured
    inside = measured.speedup.low <= measured.predicted <= measured.speedup.high
    return abs(prediction_error(entry)) > PREDICTION_TOLERANCE and not inside


def _missed(entry: RouteAnalysis) -> str:
    measured = entry.measured
    return (
        f"{printable(entry.route)}: {printable(entry.recorded_drafter)} with k = {measured.num_draft_tokens} was "
        f"predicted at {times(measured.predicted)} and measured at {times(measured.speedup.value)}: measure again on a "
        "quiet host before you rely on a close verdict"
    )


def _samples(entry: RouteAnalysis) -> str:
    counted = len(entry.speedups)
    short = entry.requests - counted
    left_out = (
        f" ({short} of {entry.requests} do not count: answers of fewer than {SHORTEST_RESPONSE} tokens)"
        if short
        else ""
    )
    return what_samples_tell(counted) + left_out


def _provenance_tables(analysis: Analysis) -> tuple[Table, ...]:
    facts = {
        "bundle": analysis.bundle,
        "command": analysis.command,
        "made": analysis.made,
        "host": analysis.host,
        "engine": f"{analysis.engine}, {_threads(analysis.costs.threads)}",
        "temperature": f"{analysis.temperature:g}",
        "requests": str(sum(entry.requests for entry in analysis.routes)),
        "tokens": f"{sum(entry.tokens for entry in analysis.routes)}, at most {analysis.max_new_tokens} per request",
        "rounds": str(sum(entry.rounds for entry in analysis.routes)),
        "draft tokens": f"at most {analysis.max_draft_tokens} per round",
        "floor of p10": times(analysis.floor),
        "costs made": f"{analysis.costs.made} on {analysis.costs.host}",
    }
    return (Table(("what", "value"), tuple((name, printable(value)) for name, value in facts.items()), texts=2),)


def _threads(count: int) -> str:
    """count: as given to `load`."""
    return f"{count} thread{'s' * (count != 1)}" if count else "its own number of threads"
