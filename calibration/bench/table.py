"""A benchmark by route, speedups, latencies and acceptance, and as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from ..statistics.intervals import quantiles, ratio_interval
from ..statistics.results import Quantiles
from ..tables import between, milliseconds, percent, printable, table, times
from .results import Bench, PairedRun, RouteBench

LEGEND = (
    "speedup: plain over speculative time per token, prefill excluded; whole: prefill included; p10 to p99: quantiles "
    "over requests, between two where they are few; slower: share of the requests that speculation slowed down. With "
    "fewer than 500 requests, p99 is about the largest value."
)


def summarize(route: str, pairs: Sequence[PairedRun]) -> RouteBench:
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
    drafters = sum((Counter(run.rounds_by_drafter) for run in runs), Counter[str]())
    shares = {
        f"{name}_share": sum(getattr(run, f"{name}_seconds") for run in runs) / seconds
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
        rounds_by_drafter=dict(drafters.most_common()),
        acceptance=tuple(one / other for one, other in zip(accepted, drafted, strict=True)),
        **shares,
        equal=outputs.count("equal"),
        near_ties=outputs.count("near tie"),
        different=outputs.count("different"),
        not_comparable=outputs.count("not comparable"),
    )


def _by_position(counts: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def render(result: Bench) -> str:
    """Tables in Markdown, and the findings in words."""
    rows = [*result.routes, *([result.overall] if result.overall else [])]
    latencies = (
        (row.route, way, *map(milliseconds, (*vars(latency).values(), first.p50, first.p90)))
        for row in rows
        for way, latency, first in (
            ("plain", row.latency_plain, row.first_token_plain),
            ("speculative", row.latency_speculative, row.first_token_speculative),
        )
    )
    speedups = "route|requests|speedup|95 %|p10|p50|p90|p99|slower|whole"
    return "\n\n".join(
        (
            f"{_heading(result)}\n{result.host}",
            table(speedups, map(_speedup, rows)),
            LEGEND,
            "ms per token; to the first token",
            table("route|way|p10|p50|p90|p99|first p50|first p90", latencies, words=2),
            "\n".join(f"- {printable(row.route)}: {_words(row)}" for row in rows),
            _outputs(result),
        )
    )


def _heading(result: Bench) -> str:
    options = result.options
    how = "greedy" if options.greedy else f"temperature {options.temperature:g}, seed {options.seed}"
    fixed = options.num_draft_tokens
    chosen = "by the policy" if result.follows_policy and not options.drafter else "chosen by the session"
    drafts = f"k {chosen}" if fixed is None else f"{fixed} draft tokens per round"
    drafts += f", drafter {options.drafter or chosen}"
    return f"{result.bundle} on {result.engine}, {how}, {drafts}, up to {options.max_new_tokens} new tokens"


def _speedup(row: RouteBench) -> tuple[object, ...]:
    quantiles = map(times, vars(row.speedups).values())
    ends = percent(row.slower), times(row.whole_request.value)
    return row.route, row.requests, times(row.speedup.value), between(row.speedup), *quantiles, *ends


def _words(row: RouteBench) -> str:
    rounds = ", ".join(f"{name} in {count}" for name, count in row.rounds_by_drafter.items())
    drafted = f"; drafted by {rounds} of {row.rounds} rounds" if rounds else ""
    accepted = ", ".join(map(percent, row.acceptance)) or "nothing was drafted"
    shares = dict(draft=row.draft_share, target=row.target_share, device=row.device_share, host=row.host_share)
    spent = ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share or name != "device")
    given = f"{row.tokens_per_round:.2f} tokens per round{drafted}"
    return f"{given}; accepted by position: {accepted}; time of the rounds: {spent}"


def _outputs(result: Bench) -> str:
    if not result.options.greedy:
        return "outputs: sampled, so not comparable token by token; specexport verify --trials tests their distribution"
    equal, near, different = (
        sum(getattr(row, name) for row in result.routes) for name in ("equal", "near_ties", "different")
    )
    counts = f"outputs: {equal} equal, {near} equal up to a near tie of two logits, {different} different"
    failed = "FAILED: speculative and plain decoding gave different tokens; run specexport verify for details"
    return f"{counts}\n{failed}" if different else counts
