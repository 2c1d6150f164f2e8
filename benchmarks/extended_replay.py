"""Lookups also after the model's tokens, and matches of three, replayed on recorded text at given costs.

    python benchmarks/extended_replay.py BUNDLE [--routes code copy] [--drafter ngram+model] [--skip N] [--limit N]

Records, greedily, which of the target's tokens the draft predicts, and replays every way of `extended.py` on that: with
the best fixed number of draft tokens, adapting, and adapting with costs that assume twice the draft's time. d and v(5)
are in plain rounds. Nothing is timed, so other work does not disturb it. Intervals are 95 %, by prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from extended import PROMPTS, Way, adaptive, fixed
from pays import text
from specexport import Session, load
from specexport.calibration.measuring.adaptive_replay import adapt
from specexport.calibration.measuring.recorder import Recorder, agreement, misses
from specexport.calibration.measuring.trace_replay import ReplayedRound, plain_seconds, replay, round_seconds
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.calibration.statistics.results import Interval
from specexport.runtime.policy.cost_model import COSTS_VERSION, CostPoint, Costs, MeasuredTime
from specexport.runtime.text.prompt_file import read_prompts

HOSTS = ((0.09, 1.32), (0.14, 1.37), (0.2, 1.7), (0.3, 1.4), (0.15, 1.05))  # d and v(5)


def costs(d: float, v5: float, most: int) -> Costs:
    """Costs in plain rounds; the draft's prefill takes a tenth of a pass per token."""

    def time(seconds: float) -> MeasuredTime:
        return MeasuredTime(seconds, seconds, seconds)

    verify = [1 + (v5 - 1) * k / 4 for k in range(most + 1)]
    rounds = tuple(time(k * d + verify[k]) for k in range(most + 1))
    point = CostPoint(1, rounds, time(d), tuple(map(time, verify)), (time(0.0),) * (most + 1))
    return Costs(COSTS_VERSION, "", "", "", 0, "", 0.0, 0.1 * d, (point,))


def record(session: Session, route: str, lines: slice, tokens: int, drafter: str | None = None) -> list[Trace]:
    found = []
    for line, prompt in enumerate(read_prompts(PROMPTS / f"{route}.jsonl")[lines]):
        session.reset()
        ids, recorder = session.encode(prompt), Recorder(session.max_draft_tokens, None)
        output = session.generate(ids, schedule=recorder, max_new_tokens=tokens, drafter=drafter).tokens
        agrees = tuple(agreement(recorder.rounds, output, greedy=True))
        missed = misses(recorder.rounds, agrees)
        found.append(Trace(line, route, len(ids), (*ids, *output), agrees, tokens, missed))
    return found


class Host:
    """A host on which rounds cost what `costs` says."""

    def __init__(self, d: float, v5: float, most: int) -> None:
        self.right, self.dear = costs(d, v5, most), costs(2 * d, v5, most)
        self._at = cached(self.right)

    def fixed(self, way: Way, traces: list[Trace], drafter: str) -> tuple[list[float], int]:
        """(seconds by trace, k) with the best fixed number of draft tokens."""
        with way.lookups():
            tried = [
                (self._seconds(traces, lambda trace, k=k: replay(trace, drafter, k)), k)  # type: ignore[misc]
                for k in range(1, self.right.max_draft_tokens + 1)
            ]
        return min(tried, key=lambda one: sum(one[0]))

    def adaptive(self, way: Way, traces: list[Trace], drafter: str, believed: Costs) -> list[float]:
        """Seconds by trace. believed: the costs that the session assumes."""

        def rounds(trace: Trace) -> Iterable[ReplayedRound]:
            schedule = way.schedule(drafter, believed, trace.route)
            assert schedule is not None
            return adapt(trace, drafter, schedule)

        with way.lookups():
            return self._seconds(traces, rounds)

    def _seconds(self, traces: list[Trace], rounds: Callable[[Trace], Iterable[ReplayedRound]]) -> list[float]:
        return [sum(round_seconds(one, self._at) for one in rounds(trace)) for trace in traces]

    def plain(self, traces: list[Trace]) -> list[float]:
        return [plain_seconds(trace, self._at) for trace in traces]


def ratio(seconds: list[float], others: list[float]) -> Interval:
    return ratio_interval(others, seconds)


def row(host: Host, traces: list[Trace], drafter: str) -> list[str]:
    plain, cells = host.plain(traces), []
    (before, most), (after, best) = (host.fixed(way, traces, drafter) for way in fixed())
    cells.append(f"{ratio(before, plain).value:.2f} (k = {most}) | {ratio(after, plain).value:.2f} (k = {best})")
    cells.append(text(ratio(after, before)))
    for believed in (host.right, host.dear):
        before, after = (host.adaptive(way, traces, drafter, believed) for way in adaptive())
        cells.append(f"{ratio(before, plain).value:.2f} | {ratio(after, plain).value:.2f}")
        cells.append(text(ratio(after, before)))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose", "copy", "random"])
    parser.add_argument("--drafter", choices=["ngram+model", "suffix+model"], default="ngram+model")
    parser.add_argument("--skip", type=int, default=0, help="how many prompts of each route to skip first")
    parser.add_argument("--limit", type=int, default=40, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    arguments = parser.parse_args()
    with load(arguments.bundle, policy=False, threads=1) as session:
        most = session.max_draft_tokens
        lines = slice(arguments.skip, arguments.skip + arguments.limit)
        traces = {route: record(session, route, lines, arguments.max_new_tokens) for route in arguments.routes}
    ways = ("best fixed k", "adaptive", "adaptive, d believed twice")
    heads = ["d, v(5)", "route", *(f"{way}, {where}" for way in ways for where in ("in front", "behind", "gain"))]
    print(f"{arguments.drafter}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for d, v5 in HOSTS:
        for route, found in traces.items():
            print(
                f"| {d}, {v5} | {route} | {' | '.join(row(Host(d, v5, most), found, arguments.drafter))} |", flush=True
            )


if __name__ == "__main__":
    main()
