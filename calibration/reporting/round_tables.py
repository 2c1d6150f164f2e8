"""Tables about rounds: how many draft tokens are accepted, what a round costs, and how well acceptance is estimated."""

from __future__ import annotations

from collections.abc import Iterable

from ..statistics.results import Analysis, Bucket
from ..statistics.sample_size import FEW, USUAL
from .tables import NOTHING, Table, between, milliseconds, number, percent, printable


def acceptance_tables(analysis: Analysis) -> tuple[Table, ...]:
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
        if candidate.drafter == entry.recorded_drafter and candidate.num_draft_tokens < len(entry.textbook)
        for expected in (entry.textbook[candidate.num_draft_tokens],)
    ]
    return (
        Table(
            ("route", *(f"token {position}" for position in range(1, positions + 1))),
            tuple((printable(entry.route), *padded(entry.acceptance, positions)) for entry in analysis.routes),
        ),
        Table(("route", "drafter", "k", "alpha", "textbook tau", "a(k)", "difference"), tuple(textbook), texts=2),
        Table(
            ("rounds of", *(f"{tokens} token{'s' if tokens > 1 else ''}" for tokens in range(1, longest + 1))),
            tuple((printable(entry.route), *padded(entry.per_round, longest)) for entry in analysis.routes),
        ),
    )


def cost_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows = []
    for point in analysis.costs.points:
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
    return (Table(columns, tuple(rows), texts=0),)


def length_tables(analysis: Analysis) -> tuple[Table, ...]:
    def span(bucket: Bucket) -> str:
        return f"{bucket.low} or more" if bucket.high is None else f"{bucket.low} to {bucket.high - 1}"

    requests = tuple(
        (
            printable(entry.route),
            str(entry.requests),
            str(entry.tokens),
            str(entry.rounds),
            number(entry.per_request.p10),
            number(entry.per_request.p50),
            number(entry.per_request.p90),
            number(entry.per_request.p99),
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
            "says little" if bucket.requests < FEW else "fewer than usual" if bucket.requests < USUAL else "",
        )
        for entry in analysis.routes
        for bucket in entry.buckets
    )
    return (
        Table(("route", "requests", "tokens", "rounds", "p10", "p50", "p90", "p99"), requests),
        Table(("route", "length of", "tokens", "requests", "a", "95 %", "remark"), buckets, texts=3, remark=True),
    )


def signal_tables(analysis: Analysis) -> tuple[Table, ...]:
    if not analysis.signals:
        return ()
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
    return (Table(("signal", "error", "error, product", "AUC", "tokens", "remark"), rows, remark=True),)
