"""An analysis as sections of prose and tables. The report and the summary both show these, so they cannot disagree.

docs/when-it-pays.md explains each section, by its title.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..statistics.results import Analysis, RouteAnalysis
from ..statistics.sample_size import FEW, USUAL, what_samples_tell
from ..survival.fit import MIN_TOKENS
from ..verdicts.verdict import BETTER_BY, MIN_REQUESTS, SHORTEST_RESPONSE, on_these
from . import tables
from .tables import PREDICTION_TOLERANCE, Table, between, prediction_error, printable, times

# Key, title, how to read it, and what makes the tables.
SECTIONS: tuple[tuple[str, str, str, Callable[[Analysis], tuple[Table, ...]]], ...] = (
    (
        "verdicts",
        "Verdicts",
        """ON: the lower end of the speedup's 95 % interval is above 1, and the p10 speedup, which nine requests in ten
        exceed, reaches {floor}. OFF: the upper end is below 1, or p10 is below {floor} with 97.5 % confidence.
        UNDECIDED: neither, or fewer than {least_requests} requests; missing says about how many more a verdict needs.
        Answers of fewer than {shortest_response} tokens do not count. Runs: how requests of the route will run. Fixed:
        k draft tokens every round. Adaptive: as many as pay in each round, which may be none; k is the best fixed
        number, for comparison. Speedups are relative to plain decoding, without the prefill, and replayed from the
        recorded runs with the measured costs. Slower: the share of the requests that would lose.""",
        tables.verdict_tables,
    ),
    (
        "acceptance",
        "Acceptance by position",
        """Of the rounds that reached a draft token (all before it were accepted), the share that accepted it; of the
        drafter of the recorded runs. The textbook: if every token were accepted with the same probability alpha, a
        round of k draft tokens would yield tau = (1 - alpha^(k+1)) / (1 - alpha) tokens, including the bonus token.
        Real text has easy and hard stretches: where a(k), measured, differs from tau, alpha alone is misleading.""",
        tables.acceptance_tables,
    ),
    (
        "costs",
        "Cost of a round",
        """A round drafts k tokens (k draft passes of d each, or a lookup), checks them in one target pass over k + 1
        tokens, v(k+1), and takes h on the host. The break-even a*(k) is its time divided by that of a plain round: the
        tokens that it must yield, including the bonus token, to be as fast as plain decoding.""",
        tables.cost_tables,
    ),
    (
        "speedups",
        "Speedup by k",
        """S(k) = a(k) / a*(k), with its 95 % interval, resampled by request. All are replayed from the same recorded
        runs, so the best of many looks slightly too good by chance; the measured speedups below do not. The drafter of
        the recorded runs is kept unless another is {better_by} % better. Drafters that --drafter leaves out are
        replayed for comparison, and not chosen.""",
        tables.speedup_tables,
    ),
    (
        "distribution",
        "Speedup per request",
        """A mean hides the requests that lose. Expected: what was chosen, replayed. Measured: the recorded runs, plain
        and speculative interleaved, always with the largest k.""",
        tables.distribution_tables,
    ),
    (
        "lengths",
        "Tokens per round, by request and by length",
        """The usual advice is {usual} requests per bucket. A bucket of fewer than {few} says little, whatever its mean
        is: look at the interval.""",
        tables.length_tables,
    ),
    (
        "predicted",
        "Predicted and measured speedup",
        """The same runs twice: predicted from costs and traces, and measured. If the two differ by more than
        {prediction_tolerance} %, the costs do not fit the runs (other load, clock speed or lengths): measure again on a
        quiet machine before you rely on a close verdict. Only the drafter and k of this table have run; to confirm
        others, run specexport bench on other prompts.""",
        tables.prediction_tables,
    ),
    (
        "signals",
        "Calibration of the acceptance estimate",
        """While drafting, the runtime estimates each token's probability of being accepted, and stops when the next
        token does not pay. Error: the expected calibration error, on requests that the estimate was not fitted on; of
        single tokens, and of the product along the draft. AUC: how well it separates accepted from rejected tokens; 0.5
        is guessing.""",
        tables.signal_tables,
    ),
    (
        "latency",
        "Latency",
        """Median time to the first token, and time per token after it, measured with the largest k. Compare only within
        a pair of rows: absolute times are specific to this host at that time.""",
        tables.latency_tables,
    ),
    (
        "provenance",
        "How it was measured",
        """Each prompt ran plain and speculative, interleaved, on the same machine, and was traced. The trace says where
        in the text the draft agrees with the target, so one run is enough for every drafter and every k. Everything
        that is not called measured is replayed from the traces.""",
        tables.provenance_tables,
    ),
)
TITLES = {key: title for key, title, *_ in SECTIONS}
NO_SIGNALS = """Nothing was fitted here. That needs a draft model whose confidence can be read, and at least
{least_tokens} of its tokens that the target judged, in at least two requests."""
SAMPLED = "When sampling, acceptance is partly chance: replays of other drafters and k use the recorded outcomes."


@dataclass(frozen=True)
class Decision:
    """verdict: `ON`, `OFF` or `UNDECIDED`. words: why, in a sentence. speedup: with its 95 % interval, between."""

    verdict: str
    route: str
    words: str
    speedup: str
    between: str


@dataclass(frozen=True)
class Section:
    """words: how to read it. findings: sentences about this analysis. decided: of the verdicts only."""

    key: str
    title: str
    words: str
    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    decided: tuple[Decision, ...] = ()


def sections(analysis: Analysis) -> tuple[Section, ...]:
    """The sections, in the order in which they are shown: verdicts first, how they were measured last."""
    findings, decided = _findings(analysis), tuple(map(_decision, analysis.routes))
    numbers = {
        "floor": times(analysis.floor),
        "least_requests": MIN_REQUESTS,
        "shortest_response": SHORTEST_RESPONSE,
        "better_by": f"{100 * (BETTER_BY - 1):.0f}",
        "prediction_tolerance": f"{100 * PREDICTION_TOLERANCE:.0f}",
        "usual": USUAL,
        "few": FEW,
        "least_tokens": MIN_TOKENS,
    }
    found: list[Section] = []
    for key, title, words, made in SECTIONS:
        text = NO_SIGNALS if key == "signals" and not analysis.signals else words
        filled = " ".join(text.format(**numbers).split())
        found.append(Section(key, title, filled, findings.get(key, ()), made(analysis), () if found else decided))
    return tuple(found)


def _decision(entry: RouteAnalysis) -> Decision:
    speedup = entry.judged.speedup
    route, words = printable(entry.route), printable(entry.words)
    return Decision(entry.policy.verdict.upper(), route, words, times(speedup.value), between(speedup))


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
    if all(one.policy.evidence and one.policy.evidence.requests < MIN_REQUESTS for one in analysis.routes):
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
    prefill = f"Prefill: target {_rate(costs.target_prefill)}, draft {_rate(costs.draft_prefill)}."
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


def _rate(seconds_per_token: float) -> str:
    return f"{1 / seconds_per_token:,.0f} tokens/s" if seconds_per_token > 0 else "none"
