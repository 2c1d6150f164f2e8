"""Lookups also after the model's tokens, and matches of three, against lookups only before them, and of four: timed.

    python benchmarks/extended.py BUNDLE [--routes code copy] [--drafter ngram+model] [--limit N] [--clock]

Every prompt is decoded plainly and in both ways, with the bundle's maximum of draft tokens and adapting, interleaved,
from an empty cache, greedy. With lookups only before the model's tokens, the adaptive schedule has one estimate for
lookups and the model. Time counts from the first round on; it is the process time of one thread, which other work on
the host disturbs least, or with --clock the wall time of two threads. Intervals are 95 %, by prompt.
`extended_replay.py` replays the same at given costs.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from unittest.mock import patch

import numpy as np
from hardware import describe_hardware
from pays import text
from specexport import Session, load
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.drafting.drafters import LOOKUPS
from specexport.runtime.drafting.lookup import Lookup
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.lookup_schedule import adaptive_schedule
from specexport.runtime.policy.pace import Pace
from specexport.runtime.policy.routes import RoutePolicy
from specexport.runtime.policy.schedule import AdaptiveSchedule, RouteState
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
GUESS = 0.6  # the chance of acceptance before anything is known


class InFront:
    """A lookup that finds nothing after tokens of the model."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.matched = 0

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        found = [] if drafted else self._lookup.find(tokens, count)
        self.matched = self._lookup.matched
        return found


@dataclass(frozen=True)
class Way:
    """A way of drafting with a model and lookups.

    shortest: the shortest match that counts. behind: whether lookups continue after the model's tokens. adapts: the
    adaptive schedule, None for a fixed number of draft tokens.
    """

    name: str
    shortest: int
    behind: bool
    adapts: Callable[..., AdaptiveSchedule] | None = None
    states: dict[str, RouteState] = field(default_factory=dict)

    @contextmanager
    def lookups(self) -> Iterator[None]:
        """Within the context, lookups are made as this way has them."""

        def of(kind: Callable[[int], Lookup]) -> Callable[[int], Lookup]:
            return lambda _: kind(self.shortest) if self.behind else InFront(kind(self.shortest))

        with patch.dict(LOOKUPS, {name: of(kind) for name, kind in LOOKUPS.items()}):
            yield

    def schedule(self, drafter: str, costs: Costs, route: str, pace: Pace | None = None) -> AdaptiveSchedule | None:
        """The schedule of a request; the requests of a route share what is learnt. costs: what the session assumes."""
        if self.adapts is None:
            return None
        most = costs.max_draft_tokens
        entry = RoutePolicy("undecided", drafter, most, "adaptive", (GUESS,) * most, None)
        return self.adapts(entry, costs, None, self.states.setdefault(route, RouteState(pace=pace)), most)


def fixed() -> list[Way]:
    return [Way("fixed, in front, 4", 4, False), Way("fixed, behind, 3", 3, True)]


def adaptive() -> list[Way]:
    return [
        Way("adaptive, in front, 4", 4, False, AdaptiveSchedule),
        Way("adaptive, behind, 3", 3, True, adaptive_schedule),
    ]


@dataclass(frozen=True)
class Run:
    seconds: float
    rounds: int
    passes: int
    looked_up: int
    tokens: tuple[int, ...]

    @property
    def emitted(self) -> int:
        return len(self.tokens)


def run(session: Session, prompt: list[int], params: SamplingParameters, schedule: object, clock: bool) -> Run:
    now, tokens = perf_counter if clock else process_time, []
    session.reset()
    stream = session.stream(prompt, params, schedule)  # type: ignore[arg-type]
    chunk = next(stream)
    start, tokens = now(), [*chunk.tokens]
    for chunk in stream:
        tokens += chunk.tokens
    found = chunk.statistics
    return Run(now() - start, found.rounds, found.draft_passes, found.looked_up, tuple(tokens))


def run_all(
    session: Session, routes: dict[str, list[list[int]]], drafter: str, tokens: int, clock: bool
) -> dict[tuple[str, str], list[Run]]:
    """Runs by route and the name of a way, "" for plain."""
    meter = CostMeter(session, [64, 192])
    meter.measure(8)
    costs = meter.costs()
    at, ways = costs.at(128), [None, *fixed(), *adaptive()]
    print(f"t1 {1e3 * at.plain:.2f} ms, d {at.draft / at.plain:.2f}, v(5) {at.verify[-1] / at.verify[0]:.2f}\n")
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    paces: dict[str, Pace] = defaultdict(lambda: Pace(perf_counter if clock else process_time))
    params = SamplingParameters(max_new_tokens=tokens)
    for number in range(max(map(len, routes.values()))):
        for route in (route for route, prompts in routes.items() if number < len(prompts)):
            for turn in np.roll(range(len(ways)), number):
                way, prompt = ways[turn], routes[route][number]
                if way is None:
                    found[route, ""].append(run(session, prompt, replace(params, speculate=False), None, clock))
                    continue
                with way.lookups():
                    schedule = way.schedule(drafter, costs, route, paces[way.name])
                    found[route, way.name].append(
                        run(session, prompt, replace(params, drafter=drafter), schedule, clock)
                    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose", "copy", "random"])
    parser.add_argument("--drafter", choices=["ngram+model", "suffix+model"], default="ngram+model")
    parser.add_argument("--limit", type=int, default=24, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--clock", action="store_true")
    arguments = parser.parse_args()
    with load(arguments.bundle, policy=False, threads=2 if arguments.clock else 1) as session:
        routes = {
            route: [session.encode(prompt) for prompt in read_prompts(PROMPTS / f"{route}.jsonl")][: arguments.limit]
            for route in arguments.routes
        }
        print(
            f"{describe_hardware()}; {arguments.drafter}, k = {session.max_draft_tokens}, "
            f"{'by the clock, 2 threads' if arguments.clock else 'own time, 1 thread'}"
        )
        found = run_all(session, routes, arguments.drafter, arguments.max_new_tokens, arguments.clock)
    print("| route | way | over plain | over in front only | tokens a round | passes | looked up | same tokens |")
    print("|---" * 8 + "|")
    for route in routes:
        plain = found[route, ""]
        for before, after in (fixed(), adaptive()):
            for way in (before, after):
                rows = found[route, way.name]
                rounds = sum(one.rounds for one in rows)
                counted = np.array([(one.emitted, one.passes, one.looked_up) for one in rows])
                mean = (counted.sum(0) / rounds).tolist()
                same = sum(one.tokens == other.tokens for one, other in zip(rows, plain, strict=True))
                print(
                    f"| {route} | {way.name} | {over(plain, rows)} | {over(found[route, before.name], rows)} "
                    f"| {' | '.join(f'{value:.2f}' for value in mean)} | {same} of {len(rows)} |"
                )


def over(others: list[Run], rows: list[Run]) -> str:
    return text(ratio_interval([one.seconds for one in others], [one.seconds for one in rows]))


if __name__ == "__main__":
    main()
