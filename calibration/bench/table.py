"""A benchmark as tables for a terminal."""

from __future__ import annotations

import textwrap
from dataclasses import asdict

from ..statistics.intervals import UNBOUNDED
from .results import Bench, RouteBench

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
