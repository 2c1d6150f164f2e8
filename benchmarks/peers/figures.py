"""Tables from the answers of all systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from divergence import Divergence
from interleave import Measured, Request

Answers = dict[tuple[str, bool], list[Measured]]


@dataclass(frozen=True)
class Row:
    """One system, plain or speculative.

    Times in milliseconds per token after the first tokens: the median request, and the 10 % and 90 % ones.

    cpu_ms: processor time of all threads per token, median; on a busy machine and with one thread it is more reliable
    than wall time.
    against: this system's time divided by the reference's in the same mode, the median over requests; above 1 the
    reference is faster.
    speedup: its own plain time divided by this one, the median over requests. tokens_per_round: accepted tokens and the
    bonus token.
    ms_per_round: for comparisons at equal acceptance, which differs a little between systems that round the weights
    differently.
    same: how many requests have the text of the system's own plain run.
    nats, agreement: divergence of its distributions from the fp32 model's; None if it does not return logits.
    """

    name: str
    speculative: bool
    ms: float
    ms_p10: float
    ms_p90: float
    cpu_ms: float
    against: float | None
    speedup: float | None
    tokens_per_round: float | None
    ms_per_round: float | None
    same: int | None
    requests: int
    nats: float | None = None
    agreement: float | None = None


def spread(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def ratio(above: list[Measured], below: list[Measured]) -> float:
    return median(a.ms_per_token / b.ms_per_token for a, b in zip(above, below, strict=True))


def same_text(found: list[Measured], plain: list[Measured]) -> int:
    """How many requests have the same text. Speculation may run past the last token; the common part is compared."""
    return sum(a.tokens[: len(b.tokens)] == b.tokens[: len(a.tokens)] for a, b in zip(found, plain, strict=True))


def rows(answers: Answers, reference: str | None, divergences: Mapping[str, Divergence] | None = None) -> list[Row]:
    """The table's rows. reference: the name of the system that the others are compared with, in each mode."""
    table = []
    for (name, speculative), found in answers.items():
        divergence = (divergences or {}).get(name)
        plain, other = answers.get((name, False)), answers.get((reference or "", speculative))
        times = [measured.ms_per_token for measured in found]
        lengths = [measured.tokens_per_round for measured in found if measured.tokens_per_round is not None]
        rounds = [measured.ms_per_round for measured in found if measured.ms_per_round is not None]
        table.append(
            Row(
                name,
                speculative,
                median(times),
                *spread(times),
                median(measured.cpu_ms_per_token for measured in found),
                against=ratio(found, other) if other else None,
                speedup=ratio(plain, found) if speculative and plain else None,
                tokens_per_round=fmean(lengths) if speculative and lengths else None,
                ms_per_round=median(rounds) if speculative and rounds else None,
                same=same_text(found, plain) if speculative and plain else None,
                requests=len(found),
                nats=divergence.nats if divergence else None,
                agreement=divergence.agreement if divergence else None,
            )
        )
    return table


def markdown(table: list[Row], reference: str | None) -> str:
    def cell(form: str, value: float | None) -> str:
        return form.format(value) if value is not None else ""

    heads = ["system", "decoding", "ms/token", "p10 to p90", "CPU ms/token", f"time / {reference or 'reference'}"]
    heads += ["speedup over own plain", "tokens per round", "ms per round", "same text"]
    heads += ["nats from fp32", "same likeliest token"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in table:
        parts = [
            row.name,
            "speculative" if row.speculative else "plain",
            f"{row.ms:.2f}",
            f"{row.ms_p10:.2f} to {row.ms_p90:.2f}",
        ]
        parts += [f"{row.cpu_ms:.2f}", cell("{:.2f}", row.against), cell("{:.2f}x", row.speedup)]
        parts += [cell("{:.2f}", row.tokens_per_round), cell("{:.1f}", row.ms_per_round)]
        parts.append(f"{row.same} of {row.requests}" if row.same is not None else "")
        parts += [cell("{:.4f}", row.nats), cell("{:.1%}", row.agreement)]
        lines.append("| " + " | ".join(parts) + " |")
    return "\n".join(lines)


def route_table(answers: Answers, routes: Sequence[str]) -> str:
    """Every system that drafts, by route: its own plain time divided by the speculative. routes: of the requests, in
    order.
    """
    heads = ["route", "system", "requests", "plain ms/token", "speculative ms/token", "speedup over own plain"]
    heads += ["slowest and fastest request", "tokens per round", "same text"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for route in dict.fromkeys(routes):
        for (name, speculative), found in answers.items():
            if not speculative or (name, False) not in answers:
                continue
            plain, drafted = (
                [one for one, its in zip(every, routes, strict=True) if its == route]
                for every in (answers[name, False], found)
            )
            speedups = [a.ms_per_token / b.ms_per_token for a, b in zip(plain, drafted, strict=True)]
            lengths = [one.tokens_per_round for one in drafted if one.tokens_per_round is not None]
            times = [f"{median(one.ms_per_token for one in every):.2f}" for every in (plain, drafted)]
            parts = [route, name, str(len(drafted)), *times, f"{median(speedups):.2f}x"]
            parts += [f"{min(speedups):.2f}x, {max(speedups):.2f}x", f"{fmean(lengths):.2f}" if lengths else ""]
            lines.append("| " + " | ".join([*parts, f"{same_text(drafted, plain)} of {len(drafted)}"]) + " |")
    return "\n".join(lines)


def first_table(answers: Answers, requests: Sequence[Request], reference: str) -> str:
    """Every system's time to the first token of plain decoding, by route.

    Requests that begin alike favour systems that keep the caches of earlier prompts.
    """
    heads = ["route", "system", "prompt tokens", "ms to the first token", "p10 to p90", f"time / {reference}"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for route in dict.fromkeys(request.route for request in requests):
        places = [place for place, request in enumerate(requests) if request.route == route]
        length = median(len(requests[place].tokens) for place in places)
        for (name, speculative), found in answers.items():
            if speculative:
                continue
            times, other = (
                [every[place].seconds_first for place in places] for every in (found, answers[reference, False])
            )
            low, high = spread(times)
            parts = [route, name, f"{length:.0f}", f"{median(times) * 1e3:.0f}", f"{low * 1e3:.0f} to {high * 1e3:.0f}"]
            against = median(a / b for a, b in zip(times, other, strict=True))
            lines.append("| " + " | ".join([*parts, f"{against:.2f}"]) + " |")
    return "\n".join(lines)


def width_table(widths: dict[str, dict[str, float]]) -> str:
    """v(m), and v(m) / v(1) in brackets, by system."""
    columns = list(next(iter(widths.values())))
    lines = ["| rows in one pass, ms | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, found in widths.items():
        cells = (f"{found[width]:.2f} ({found[width] / found['1']:.2f})" for width in columns)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
