"""An uncalibrated session against plain decoding and every fixed number of draft tokens.

    python benchmarks/uncalibrated.py BUNDLE [--limit 12] [--max-new-tokens 96]

On prompts of the routes code, prose and random, in mixed order, as in a service. All ways of decoding are interleaved
on each prompt, and routes are not named. Costs are measured again. Prints speedups over plain by route, with 95 %
intervals by prompt. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from hardware import describe_hardware
from pays import PLAIN, ROUTES, Timed, ratio, requests, text
from specexport import Session, load
from specexport.calibration.measuring.prompts import Request
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.sampling.parameters import SamplingParameters

DEFAULT = "default"


def time_all(session: Session, prompts: list[Request]) -> list[Timed]:
    fixed = {f"k = {k}": SamplingParameters(num_draft_tokens=k) for k in range(1, session.max_draft_tokens + 1)}
    ways = {PLAIN: SamplingParameters(speculate=False), DEFAULT: SamplingParameters(), **fixed}
    names, found = list(ways), []
    for number, request in enumerate(prompts):
        seconds: dict[str, float] = {}
        tokens = set()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            session.reset()
            generation = session.generate(request.tokens, ways[name], max_new_tokens=request.max_new_tokens)
            seconds[name] = generation.statistics.decode_seconds
            tokens.add(generation.tokens)
        found.append(Timed(request.route, seconds, len(tokens) == 1))
    return found


def table(timed: list[Timed]) -> str:
    ways = list(timed[0].seconds)
    streams = {route: [entry for entry in timed if entry.route == route] for route in ROUTES} | {"all": timed}
    lines = ["speedup over plain | " + " | ".join(streams), "|".join(["---"] * (len(streams) + 1))]
    for name in ways[1:]:
        lines.append(f"{name} | " + " | ".join(text(ratio(entries, PLAIN, name)) for entries in streams.values()))
    best = [min(ways[2:], key=lambda name, e=e: sum(one.seconds[name] for one in e)) for e in streams.values()]  # type: ignore[misc]
    cells = [text(ratio(entries, name, DEFAULT)) for entries, name in zip(streams.values(), best, strict=True)]
    named = [f"{cell}, {name}" for cell, name in zip(cells, best, strict=True)]
    lines.append(f"{DEFAULT} over the best fixed | " + " | ".join(named))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--limit", type=int, default=12, help="prompts of each route")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    arguments = parser.parse_args()
    with TemporaryDirectory() as cache, load(arguments.bundle, policy=False) as session:
        os.environ["XDG_CACHE_HOME"] = cache
        _, prompts = requests(session, arguments.limit, arguments.max_new_tokens)
        session.decisions = Decisions(first_draft=session.drafts.first)
        session.adapt()
        start = perf_counter()
        session.generate(prompts[0].tokens, max_new_tokens=1)
        print(f"{describe_hardware()}; costs measured in {perf_counter() - start:.2f} s")
        timed = time_all(session, prompts)
    print(table(timed))
    print(f"\nsame tokens all ways: {sum(entry.equal for entry in timed)} of {len(timed)} prompts")


if __name__ == "__main__":
    main()
