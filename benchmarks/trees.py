"""A draft with leaves against the draft alone: speed, tokens per round, and the cost of a row. Timed, interleaved.

    python benchmarks/trees.py BUNDLE [--leaves 1 2 4 8] [--num-draft-tokens 4] [--temperature 0] [--limit N] [--clock]

BUNDLE must be built with --tree-rows. Every prompt is decoded in all ways, interleaved, from an empty cache: plainly,
with each number of --leaves in every round, and adapting without leaves and with one. Greedy outputs must be
equal up to near ties; it prints how many are not. Time counts from the first round on; it is the process time of one
thread, which other work on the host disturbs least, or with --clock the wall time of two threads. Intervals are 95 %,
by prompt, each way against the same without leaves.

A second table prices the counted rounds, rows and draft passes for other hosts, by d and v(5), without any clock.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from hardware import describe_hardware
from specexport import Session, load
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
HOSTS = ((0.1, 1.4), (0.3, 1.4), (0.1, 1.1), (0.15, 1.05), (0.3, 1.05))  # d and v(5)
Clock = Callable[[], float]


@dataclass
class Run:
    seconds: float
    tokens: tuple[int, ...]
    rounds: int
    caught: int
    leaves: int
    passes: int  # of the draft
    rows: int  # of the target's passes, beyond one a round

    @property
    def pace(self) -> float:
        """Seconds per token after the first round."""
        return self.seconds / len(self.tokens)

    def priced(self, d: float, v5: float) -> float:
        """Plain rounds per token, where a draft pass takes d of them and a pass over five rows v5."""
        return (self.rounds + d * self.passes + self.rows * (v5 - 1) / 4) / len(self.tokens)


def decode(session: Session, prompt: list[int], params: SamplingParameters, clock: Clock, **options: Any) -> Run:
    session.reset()
    tokens: list[int] = []
    start = clock()
    for chunk in session.stream(prompt, params, **options):
        if not tokens:
            start, first = clock(), len(chunk.tokens)
        tokens += chunk.tokens
        row = chunk.statistics
    seconds = (clock() - start) * len(tokens) / max(1, len(tokens) - first)
    rows = row.drafted + row.leaves + row.fed_again
    return Run(seconds, tuple(tokens), row.rounds, row.caught, row.leaves, row.draft_passes, rows)


def widths(session: Session, clock: Clock, context: int, turns: int = 7) -> list[float]:
    """Median seconds of the target's pass over 1, 2, ... rows after `context` rows."""
    target, taken = session.engine.target, defaultdict(list)
    widest = session.bundle.manifest.contract.widest_step
    target.step([5] * min(context, session.bundle.manifest.contract.prompt_chunk), 0)
    for _ in range(turns):
        for width in range(1, widest + 1):
            start = clock()
            target.step([7] * width, context)
            taken[width].append(clock() - start)
    session.reset()
    return [median(taken[width]) for width in range(1, widest + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose"])
    parser.add_argument("--leaves", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=6, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--clock", action="store_true")
    arguments = parser.parse_args()
    clock: Clock = perf_counter if arguments.clock else process_time
    session = load(arguments.bundle, threads=2 if arguments.clock else 1)
    session.prepare()
    greedy = arguments.temperature == 0
    params = SamplingParameters(
        temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens, stop_token_ids=(), seed=None
    )
    fixed = {"num_draft_tokens": arguments.num_draft_tokens}
    ways: dict[str, dict[str, Any]] = {"plain": {"speculate": False}}
    ways |= {f"k {arguments.num_draft_tokens}, {n} leaves": fixed | {"num_leaves": n} for n in (0, *arguments.leaves)}
    ways |= {f"adapting, {n} leaves": {"num_leaves": n} for n in (0, 1)}
    against = {name: name.replace(name.split(", ")[1], "0 leaves") for name in ways if ", " in name}
    costs = widths(session, clock, 64)
    print(f"{describe_hardware()}; temperature {arguments.temperature}")
    print("v(m)/v(1): " + ", ".join(f"{seconds / costs[0]:.3f}" for seconds in costs))
    runs: dict[str, list[Run]] = defaultdict(list)
    for route in arguments.routes:
        for place, prompt in enumerate(read_prompts(PROMPTS / f"{route}.jsonl")[: arguments.limit]):
            tokens = session.encode(prompt)
            names = list(ways)
            for name in names[place % len(names) :] + names[: place % len(names)]:
                runs[name].append(decode(session, tokens, params, clock, **ways[name]))
    print("| way | speed over plain | against 0 leaves | tokens a round | leaves a round | caught | other output |")
    print("|---|---|---|---|---|---|---|")
    for name, found in runs.items():
        rounds = sum(run.rounds for run in found)
        over = ratio_interval([run.pace for run in runs["plain"]], [run.pace for run in found])
        beside = ""
        if against.get(name, name) != name:
            ratio = ratio_interval([run.pace for run in runs[against[name]]], [run.pace for run in found])
            beside = f"{ratio.value - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"
        differ = sum(a.tokens != b.tokens for a, b in zip(found, runs["plain"], strict=True)) if greedy else "-"
        print(
            f"| {name} | {over.value:.2f} | {beside} | {sum(len(run.tokens) for run in found) / rounds:.2f} "
            f"| {sum(run.leaves for run in found) / rounds:.2f} | {sum(run.caught for run in found) / rounds:.3f} "
            f"| {differ} |",
            flush=True,
        )
    print_priced({n: runs[f"k {arguments.num_draft_tokens}, {n} leaves"] for n in (0, *arguments.leaves)})


def print_priced(by_leaves: dict[int, list[Run]]) -> None:
    print("\n| d | v(5) | 0 leaves over plain | " + " | ".join(f"{n} leaves" for n in by_leaves if n) + " |")
    print("|---|---|---|" + "---|" * (len(by_leaves) - 1))
    for d, v5 in HOSTS:
        paces = {n: [run.priced(d, v5) for run in found] for n, found in by_leaves.items()}
        cells = [f"{ratio_interval([1.0] * len(paces[0]), paces[0]).value:.2f}"]
        for n in paces:
            if n:
                ratio = ratio_interval(paces[0], paces[n])
                cells.append(f"{ratio.value - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})")
        print(f"| {d} | {v5} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
