"""An analysis as sections of words and tables. The report and the summary show these, so they cannot disagree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..statistics.results import Analysis, Bucket, RouteAnalysis
from ..statistics.sample_size import FEW, USUAL, what_samples_tell
from ..verdicts.verdict import BETTER_BY, LEAST_REQUESTS, SHORTEST_RESPONSE
from .tables import (
    NOTHING,
    Decision,
    Section,
    Table,
    between,
    milliseconds,
    number,
    percent,
    printable,
    quantile,
    rate,
    times,
)

# Predicted and measured speedups that differ by more than this say that the costs or the traces are not those of the
# runs.
PREDICTION_TOLERANCE = 0.05


def sections(analysis: Analysis) -> tuple[Section, ...]:
    """What was found, the verdicts first, how it was measured last."""
    return (
        _verdicts(analysis),
        _acceptance(analysis),
        _costs(analysis),
        _speedups(analysis),
        _distribution(analysis),
        _lengths(analysis),
        _predicted(analysis),
        _signals(analysis),
        _latency(analysis),
        _provenance(analysis),
    )


def recorded(route: RouteAnalysis) -> str:
    """The drafter of the recorded runs, whose acceptance, alpha and textbook these are: the first of the candidates."""
    return route.candidates[0].drafter


def _verdicts(analysis: Analysis) -> Section:
    def row(entry: RouteAnalysis) -> tuple[str, ...]:
        chosen, policy = entry.chosen, entry.policy
        return (
            policy.verdict.upper(),
            printable(entry.route),
            printable(chosen.drafter),
            policy.mode
            if policy.mode == "adaptive" or (policy.num_draft_tokens and policy.verdict != "off")
            else "plain",
            str(chosen.num_draft_tokens),
            times(chosen.speedup.value),
            between(chosen.speedup),
            times(chosen.p10),
            percent(chosen.slower),
            counted
            if (counted := str(len(entry.speedups))) == str(entry.requests)
            else f"{counted} of {entry.requests}",
            str(entry.missing) if entry.missing else NOTHING,
        )

    columns = ("verdict", "route", "drafter", "runs", "k", "speedup", "95 %", "p10", "slower", "requests", "missing")
    return Section(
        "verdicts",
        "What was decided",
        (
            f"ON: the lower end of the 95 % interval of the speedup lies above 1, and the slowest tenth of the requests (p10) reaches "
            f"{times(analysis.floor)}. OFF: the upper end lies below 1, or p10 is below that with 97.5 %. UNDECIDED: neither, or fewer "
            f"than {LEAST_REQUESTS} requests; missing says how many more a verdict is likely to need. Responses of fewer than "
            f"{SHORTEST_RESPONSE} tokens are over in a round or two, and do not count among the requests, for p10 and for slower.",
            "Runs: what requests of the route get. Fixed: always k. Plain: none. Adaptive: each round drafts as many tokens as pay, "
            "which may be none; the figures are of the best fixed k, and specexport bench says what adapting makes of them.",
            "Drafter and k are the best that were tried, also where none was good enough. Speedups are against plain decoding, behind "
            "the prompt, and expected: replayed from the recorded runs with the measured costs. Slower: the part of the requests that "
            "would lose.",
            f"{USUAL} requests are the usual advice for a route. What fewer can tell, with 95 % confidence, whatever the distribution:",
        ),
        tuple(f"{printable(entry.route)}: {what_samples_tell(len(entry.speedups))}" for entry in analysis.routes),
        (Table(columns, tuple(map(row, analysis.routes)), texts=4),),
        tuple(
            Decision(entry.policy.verdict.upper(), printable(entry.route), printable(entry.words))
            for entry in analysis.routes
        ),
    )


def _acceptance(analysis: Analysis) -> Section:
    positions = max((len(entry.acceptance) for entry in analysis.routes), default=0)
    longest = max((len(entry.per_round) for entry in analysis.routes), default=0)

    def padded(values: Iterable[float], length: int) -> tuple[str, ...]:
        cells = [percent(value) for value in values]
        return (*cells, *[NOTHING] * (length - len(cells)))

    textbook = [
        (
            printable(entry.route),
            printable(candidate.drafter),
            str(candidate.num_draft_tokens),
            number(entry.alpha),
            number(expected),
            number(candidate.acceptance_length),
            f"{candidate.acceptance_length - expected:+.2f}",
        )
        for entry in analysis.routes
        for candidate in entry.candidates
        if candidate.drafter == recorded(entry) and candidate.num_draft_tokens < len(entry.textbook)
        for expected in (entry.textbook[candidate.num_draft_tokens],)
    ]
    return Section(
        "acceptance",
        "How many draft tokens stand",
        (
            "By position in the draft: of the rounds that reached a draft token (all before it were accepted), the part that had it "
            "accepted. All of this section is of the recorded runs' drafter.",
            "The textbook: were every token accepted with the same chance alpha, a round of k draft tokens would give "
            "tau = (1 - alpha^(k+1)) / (1 - alpha) tokens, the bonus token included. Real drafts come in easy and hard stretches: "
            "where a(k), found on the recorded text, is not tau, alpha alone misleads.",
        ),
        (),
        (
            Table(
                ("route", *(f"token {position}" for position in range(1, positions + 1))),
                tuple((printable(entry.route), *padded(entry.acceptance, positions)) for entry in analysis.routes),
            ),
            Table(("route", "drafter", "k", "alpha", "textbook tau", "a(k)", "difference"), tuple(textbook), texts=2),
            Table(
                ("rounds of", *(f"{tokens} token{'s' if tokens > 1 else ''}" for tokens in range(1, longest + 1))),
                tuple((printable(entry.route), *padded(entry.per_round, longest)) for entry in analysis.routes),
            ),
        ),
    )


def _costs(analysis: Analysis) -> Section:
    costs = analysis.costs
    rows = []
    for point in costs.points:
        plain = point.rounds[0].median
        for k, (whole, verify, host) in enumerate(zip(point.rounds, point.verify, point.host, strict=True)):
            looked_up = (verify.median + host.median) / plain
            rows.append(
                (
                    str(point.context),
                    str(k),
                    milliseconds(whole.median),
                    f"{milliseconds(whole.p10)} to {milliseconds(whole.p90)}",
                    number(whole.median / plain),
                    number(looked_up) if k else number(1.0),
                    milliseconds(point.draft.median),
                    milliseconds(verify.median),
                    milliseconds(host.median),
                )
            )
    columns = ("context", "k", "round, ms", "p10 to p90", "a*(k) model", "a*(k) lookup", "d, ms", "v(k+1), ms", "h, ms")
    return Section(
        "costs",
        "What a round costs",
        (
            "A round drafts k tokens (k draft passes of d each, or a lookup), lets the target look at all of them in one pass over "
            "k + 1 tokens, v(k+1), and costs the host h. A plain round, k = 0, takes t1. The break-even a*(k) is a round's time over "
            "t1: as many tokens a round must give, the bonus token included, to be as fast as plain decoding. A route whose measured "
            "a(k) lies above a*(k) gains.",
        ),
        (f"Prompts: {rate(costs.target_prefill)} through the target, {rate(costs.draft_prefill)} through the draft.",),
        (Table(columns, tuple(rows), texts=0),),
    )


def _speedups(analysis: Analysis) -> Section:
    rows = tuple(
        (
            printable(entry.route),
            printable(candidate.drafter),
            str(candidate.num_draft_tokens),
            number(candidate.acceptance_length),
            number(candidate.break_even),
            times(candidate.speedup.value),
            between(candidate.speedup),
            times(candidate.p10),
            percent(candidate.slower),
            "best" if candidate == entry.chosen else "",
        )
        for entry in analysis.routes
        for candidate in entry.candidates
    )
    return Section(
        "speedups",
        "Which k pays",
        (
            "S(k) = a(k) / a*(k), with its 95 % interval, resampled by request: the tokens of one request go together, and counting "
            "each as evidence of its own would make the interval too narrow.",
            "All of these come from the same recorded run. The best of many is a little flattered by chance; the measured speedups "
            f"below are not. The recorded runs' drafter is kept unless another is {100 * (BETTER_BY - 1):.0f} % better.",
        ),
        (),
        (
            Table(
                ("route", "drafter", "k", "a(k)", "a*(k)", "S(k)", "95 %", "p10", "slower", ""),
                rows,
                texts=2,
                remark=True,
            ),
        ),
    )


def _distribution(analysis: Analysis) -> Section:
    rows = []
    for entry in analysis.routes:
        for what, drafter, k, values in (
            ("expected", printable(entry.chosen.drafter), entry.chosen.num_draft_tokens, entry.speedups),
            ("measured", printable(recorded(entry)), entry.measured.num_draft_tokens, entry.measured.speedups),
        ):
            replayed = what == "expected"
            slower = entry.chosen.slower if replayed else _share_slower(values)
            p10 = entry.chosen.p10 if replayed else quantile(values, 0.1)
            rows.append(
                (
                    printable(entry.route),
                    what,
                    drafter,
                    str(k),
                    str(len(values)),
                    times(p10),
                    times(quantile(values, 0.5)),
                    times(quantile(values, 0.9)),
                    percent(slower),
                )
            )
    return Section(
        "distribution",
        "What single requests see",
        (
            "A mean hides those who lose. Each request's speedup, in order: where a curve crosses 1, so large a part of the requests "
            "is slower than plain. Expected: the best drafter and k, replayed. Measured: the recorded runs, plain and speculative in "
            "turn, always with the largest k.",
        ),
        (),
        (Table(("route", "", "drafter", "k", "requests", "p10", "p50", "p90", "slower"), tuple(rows), texts=3),),
    )


def _share_slower(values: Sequence[float]) -> float:
    return sum(value < 1 for value in values) / len(values) if values else math.nan


def _lengths(analysis: Analysis) -> Section:
    def span(bucket: Bucket) -> str:
        return f"{bucket.low} or more" if bucket.high is None else f"{bucket.low} to {bucket.high - 1}"

    requests = tuple(
        (
            printable(entry.route),
            str(entry.requests),
            str(entry.tokens),
            str(entry.rounds),
            *(
                number(value)
                for value in (
                    entry.per_request.p10,
                    entry.per_request.p50,
                    entry.per_request.p90,
                    entry.per_request.p99,
                )
            ),
        )
        for entry in analysis.routes
    )
    buckets = tuple(
        (
            printable(entry.route),
            bucket.kind,
            span(bucket),
            str(bucket.requests),
            number(bucket.acceptance_length.value),
            between(bucket.acceptance_length),
            "tells little" if bucket.requests < FEW else "fewer than usual" if bucket.requests < USUAL else "",
        )
        for entry in analysis.routes
        for bucket in entry.buckets
    )
    return Section(
        "lengths",
        "Tokens a round, by request and by length",
        (
            f"The usual advice is {USUAL} requests a bucket. One with fewer than {FEW} tells little, whatever its mean says: look "
            "at the interval.",
        ),
        (),
        (
            Table(("route", "requests", "tokens", "rounds", "p10", "p50", "p90", "p99"), requests),
            Table(("route", "length of", "tokens", "requests", "a", "95 %", "remark"), buckets, texts=3, remark=True),
        ),
    )


def _predicted(analysis: Analysis) -> Section:
    def row(entry: RouteAnalysis) -> tuple[str, ...]:
        measured = entry.measured
        apart = measured.predicted / measured.speedup.value - 1 if measured.speedup.value > 0 else math.nan
        return (
            printable(entry.route),
            recorded(entry),
            str(measured.num_draft_tokens),
            times(measured.predicted),
            times(measured.speedup.value),
            between(measured.speedup),
            f"{100 * apart:+.1f} %" if math.isfinite(apart) else NOTHING,
            "" if abs(apart) <= PREDICTION_TOLERANCE else "more than 5 % apart",
        )

    columns = ("route", "drafter", "k", "predicted", "measured", "95 %", "apart", "remark")
    return Section(
        "predicted",
        "Predicted against measured",
        (
            "The same runs twice: from costs and traces, and by the clock, each request plain and speculative in turn. If they are "
            "more than 5 % apart, the costs are not those of the runs (another load, another clock speed, another length): measure "
            "again on a quiet machine before trusting a verdict that is close. Only the drafter and k of this table have run; the "
            "others are replayed, and specexport bench on other prompts is what confirms them.",
        ),
        (),
        (Table(columns, tuple(map(row, analysis.routes)), texts=2, remark=True),),
    )


def _signals(analysis: Analysis) -> Section:
    if not analysis.signals:
        words = ("There is no draft model, so nothing says how sure a draft is: drafts are looked up in the text.",)
        return Section("signals", "How well survival is foreseen", words, (), ())
    rows = tuple(
        (
            quality.signal,
            percent(quality.error, 1),
            percent(quality.survival_error, 1),
            number(quality.auc, 3),
            str(sum(tokens for _, _, tokens in quality.reliability)),
            "chosen" if quality.signal == analysis.signal else "",
        )
        for quality in analysis.signals
    )
    return Section(
        "signals",
        "How well survival is foreseen",
        (
            "While it drafts, the runtime estimates each token's chance to stand, and stops where the next one does not pay. Expected "
            "calibration error: how far estimates are from what happens, on requests that they were not fitted on; of single tokens, "
            "and of the product along the draft. AUC: how well they tell tokens that stand from those that fall; 0.5 is guessing.",
        ),
        (f"Chosen: {analysis.signal or 'none'}.",),
        (Table(("signal", "error", "error, product", "AUC", "tokens", "remark"), rows, remark=True),),
    )


def _latency(analysis: Analysis) -> Section:
    rows = []
    for entry in analysis.routes:
        measured = entry.measured
        for how, first, latency in (
            ("plain", measured.first_token_plain, measured.latency_plain),
            ("speculative", measured.first_token_speculative, measured.latency_speculative),
        ):
            values = (latency.p10, latency.p50, latency.p90, latency.p99)
            rows.append(
                (printable(entry.route), how, str(entry.requests), milliseconds(first), *map(milliseconds, values))
            )
    columns = ("route", "", "requests", "first token, ms", "p10, ms", "p50, ms", "p90, ms", "p99, ms")
    return Section(
        "latency",
        "Latency, plain against speculative",
        (
            "Median time to the first token, and time per token behind it, as measured, with the largest k. Compare within a row pair: "
            "absolute times belong to this host on that day.",
        ),
        (),
        (Table(columns, tuple(rows), texts=2),),
    )


def _provenance(analysis: Analysis) -> Section:
    facts = {
        "bundle": analysis.bundle,
        "command": analysis.command,
        "made": analysis.made,
        "host": analysis.host,
        "engine": f"{analysis.engine}, {analysis.costs.threads} threads",
        "temperature": f"{analysis.temperature:g}",
        "requests": str(sum(entry.requests for entry in analysis.routes)),
        "tokens": f"{sum(entry.tokens for entry in analysis.routes)}, at most {analysis.max_new_tokens} a request",
        "rounds": str(sum(entry.rounds for entry in analysis.routes)),
        "draft tokens": f"at most {analysis.max_draft_tokens} a round",
        "floor of p10": times(analysis.floor),
        "costs made": f"{analysis.costs.made} on {analysis.costs.host}",
    }
    return Section(
        "provenance",
        "How it was measured",
        (
            "Each prompt ran plain and speculative in turn, on the same machine, and was traced. Where the draft agrees with the "
            "target at each place of the text is known from that, so one traced run says what every drafter and every k would have "
            "given; everything but what is called measured is replayed from it.",
        ),
        ()
        if analysis.temperature == 0
        else (
            "Sampled, a draft token's fate is also chance: replays take the recorded outcomes for those of other drafters and other k.",
        ),
        (Table(("what", "value"), tuple((name, printable(value)) for name, value in facts.items()), texts=2),),
    )
