"""A benchmark by route, speedups, latencies and acceptance, and as tables for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest

from ..statistics.intervals import UNBOUNDED, quantiles, ratio_interval
from ..statistics.results import Quantiles
from .results import Bench, PairedRun, Predict, RouteBench

COLUMNS = 110
LABEL = 16
SPEEDUP_WIDTHS = (9, 9, 16, 8, 8, 8, 8, 9, 9, 10)
TIME_WIDTHS = (9, 9, 9, 9, 13, 9, 9, 9)  # after a label of 28 columns
QUANTILES = ("p10", "p50", "p90", "p99")
LEGEND = (
    "speedup: plain over speculative time per token, prefill excluded; whole: prefill included; p10 to p99: quantiles "
    "over requests; slower: share of the requests that speculation slowed down; predicted: what this host's measured "
    "costs make of the drafts that were accepted. With fewer than 500 requests, p99 is about the largest value."
)


def summarize(route: str, pairs: Sequence[PairedRun], predict: Predict | None = None) -> RouteBench:
    """Summarize the runs of one route. The repeats of a request count as one longer request; `pairs` is not empty."""
    groups: dict[int, list[PairedRun]] = {}
    for pair in pairs:
        groups.setdefault(pair.request, []).append(pair)
    grouped = list(groups.values())

    def totals(value: Callable[[PairedRun], float]) -> list[float]:
        return [sum(map(value, group)) for group in grouped]

    def means(value: Callable[[PairedRun], float]) -> Quantiles:
        return quantiles([total / len(group) for total, group in zip(totals(value), grouped, strict=True)])

    plain, speculative = totals(lambda pair: pair.plain_seconds), totals(lambda pair: pair.speculative.decode_seconds)
    speedups = [one / other for one, other in zip(plain, speculative, strict=True)]
    whole_plain = totals(lambda pair: pair.plain.prefill_seconds + pair.plain_seconds)
    whole_speculative = totals(lambda pair: pair.speculative.prefill_seconds + pair.speculative.decode_seconds)
    runs = [pair.speculative for pair in pairs]
    rounds, emitted, seconds = (
        sum(getattr(run, name) for run in runs) for name in ("rounds", "emitted", "decode_seconds")
    )
    drafted, accepted = (
        _by_position(getattr(run, f"{name}_by_position") for run in runs) for name in ("drafted", "accepted")
    )
    share = {
        name: sum(getattr(run, f"{name}_seconds") for run in runs) / seconds
        for name in ("draft", "target", "device", "host")
    }
    outputs = [pair.outputs for pair in pairs]
    return RouteBench(
        route=route,
        requests=len(grouped),
        prompt_tokens=sum(pair.prompt_tokens for pair in pairs),
        emitted=emitted,
        rounds=rounds,
        speedup=ratio_interval(plain, speculative),
        whole_request=ratio_interval(whole_plain, whole_speculative),
        speedups=quantiles(speedups),
        slower=sum(speedup < 1 for speedup in speedups) / len(speedups),
        latency_plain=means(lambda pair: pair.plain.latency),
        latency_speculative=means(lambda pair: pair.speculative.latency),
        first_token_plain=means(lambda pair: pair.plain.first_token_seconds),
        first_token_speculative=means(lambda pair: pair.speculative.first_token_seconds),
        tokens_per_round=emitted / rounds,
        acceptance=tuple(one / other for one, other in zip(accepted, drafted, strict=True)),
        draft_share=share["draft"],
        target_share=share["target"],
        device_share=share["device"],
        host_share=share["host"],
        predicted=predict(route, pairs) if predict else None,
        equal=outputs.count("equal"),
        near_ties=outputs.count("near tie"),
        different=outputs.count("different"),
        not_comparable=outputs.count("not comparable"),
    )


def _by_position(counts: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def render(result: Bench) -> str:
    """Tables of at most `COLUMNS` characters per line, and the findings in words."""
    rows = [*result.routes, *([result.overall] if result.overall else [])]
    names = ("requests", "speedup", "95 % interval", "p10", "p50", "p90", "p99", "slower", "whole", "predicted")
    lines = [
        *textwrap.wrap(_heading(result), COLUMNS),
        *textwrap.wrap(result.host, COLUMNS),
        "",
        _label("route") + "".join(map(_right, names, SPEEDUP_WIDTHS)),
    ]
    lines += [_label(row.route) + "".join(map(_right, _speedup(row), SPEEDUP_WIDTHS)) for row in rows]
    lines += textwrap.wrap(LEGEND, COLUMNS)
    lines += [
        "",
        f"{'':<31}{'ms per token':<40}ms to the first token",
        " " * 28 + "".join(map(_right, QUANTILES * 2, TIME_WIDTHS)),
    ]
    for row in rows:
        ways = (
            ("plain", row.latency_plain, row.first_token_plain),
            ("speculative", row.latency_speculative, row.first_token_speculative),
        )
        for way, latency, first in ways:
            times = [_milliseconds(value) for found in (latency, first) for value in asdict(found).values()]
            lines.append(_label(row.route) + f"{way:<12}" + "".join(map(_right, times, TIME_WIDTHS)))
    lines.append("")
    for row in rows:
        words = textwrap.wrap(_words(row), COLUMNS - LABEL)
        lines += [_label(row.route) + words[0], *(" " * LABEL + line for line in words[1:])]
    return "\n".join([*lines, "", *_outputs(result)])


def _heading(result: Bench) -> str:
    options = result.options
    how = "greedy" if options.greedy else f"temperature {options.temperature:g}, seed {options.seed}"
    fixed = options.num_draft_tokens
    drafts = "k chosen by the session" if fixed is None else f"{fixed} draft tokens per round"
    drafts += f", drafter {options.drafter}" if options.drafter else ""
    return f"{result.bundle} on {result.engine}, {how}, {drafts}, up to {options.max_new_tokens} new tokens"


def _speedup(row: RouteBench) -> tuple[str, ...]:
    interval = f"{_ratio(row.speedup.low)} to {_ratio(row.speedup.high)}" if row.speedup.high < UNBOUNDED else "unknown"
    found = map(_ratio, asdict(row.speedups).values())
    predicted = "-" if row.predicted is None else f"{_ratio(row.predicted)}x"
    ends = (f"{row.slower:.0%}", f"{_ratio(row.whole_request.value)}x", predicted)
    return (str(row.requests), f"{_ratio(row.speedup.value)}x", interval, *found, *ends)


def _ratio(value: float) -> str:
    # a few short runs may have any speedup; this keeps the columns aligned
    return f"{value:.2f}" if value < 1000 else "1000+"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 100 else f"{seconds * 1e3:.1e}"


def _words(row: RouteBench) -> str:
    accepted = ", ".join(f"{part:.0%}" for part in row.acceptance) or "nothing was drafted"
    shares = dict(draft=row.draft_share, target=row.target_share, device=row.device_share, host=row.host_share)
    times = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share or name != "device")
    return f"{row.tokens_per_round:.2f} tokens per round; accepted by position: {accepted}; time of the rounds: {times}"


def _outputs(result: Bench) -> list[str]:
    if not result.options.greedy:
        return [
            "outputs: sampled, so not comparable token by token; specexport verify --trials tests their distribution"
        ]
    equal, near, different = (
        sum(getattr(row, name) for row in result.routes) for name in ("equal", "near_ties", "different")
    )
    found = f"outputs: {equal} equal, {near} equal up to a near tie of two logits, {different} different"
    failed = "FAILED: speculative and plain decoding gave different tokens; run specexport verify for details"
    return [found, failed] if different else [found]


def _label(route: str) -> str:
    from rich.cells import set_cell_size  # characters of some scripts take two columns

    return set_cell_size(route, LABEL - 1) + " "


def _right(text: str, width: int) -> str:
    return f"{text:>{width}}"
