"""Speedups, latencies and acceptance of a route, from its paired runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from ..statistics.intervals import quantiles, ratio_interval
from ..statistics.results import Quantiles
from .results import PairedRun, Predict, RouteBench


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
