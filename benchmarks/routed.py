"""Requests that name no route, timed: a session that chooses the drafter, against sessions with one drafter.

    specexport build --target examples/demo_pair/target --draft examples/demo_pair/draft -o demo.bundle
    specexport tune demo.bundle --draft examples/demo_pair/draft --prompts examples/prompts/random.jsonl --limit 110 \\
        --max-new-tokens 96 --answers 1 --epochs 6 --general 0 -o random-draft
    specexport add-draft demo.bundle --draft random=random-draft
    head -qn 30 examples/prompts/{code,prose,random}.jsonl > calibration.jsonl
    specexport calibrate demo.bundle --prompts calibration.jsonl --max-new-tokens 96 --threads 1
    python benchmarks/routed.py demo.bundle --routes code prose random --skip 30 --limit 20 --threads 1

Every way is an adaptive session's knowledge and decisions, over the same mixed stream: `routed`, `named` (every request
names its route), each drafter of `routing.json` alone, and the first of these once more, which shows how much two equal
ways differ. One session runs them all, since two with the same models differ by 2 % and more. Every request runs in all
ways, in a rotating order, from empty caches. Speed is tokens per second after the first round, and with the prefill;
intervals are 95 %, by request. Greedy texts must be equal. Time is the process time, which other work on the host
disturbs least, so give `--threads 1`; `--clock` takes the wall time.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

from specexport import load
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.routes import RoutePolicy
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"


def alone(decisions: Decisions, drafter: str) -> Decisions:
    """Decisions that use one drafter for all routes, starting from the mean of what is known about it."""
    assert decisions.policy is not None
    assert decisions.routing is not None
    found = [route.drafters[drafter].chances for route in decisions.routing.routes.values()]
    chances = tuple(sum(column) / len(found) for column in zip(*found, strict=False))
    entry = RoutePolicy("undecided", drafter, 0, "adaptive", chances, None)
    decisions.policy, decisions.routing = replace(decisions.policy, default=entry, routes={}), None
    return decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose", "random"])
    parser.add_argument("--skip", type=int, default=30)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", action="store_true")
    given = parser.parse_args()
    clock = perf_counter if given.clock else process_time
    session = load(given.bundle, threads=given.threads)

    def fresh() -> Decisions:
        found = Decisions.load(session.drafts, given.threads)
        found.clock = clock
        return found

    routing = fresh().routing
    if routing is None:
        raise SystemExit(f"{given.bundle} has no routing.json; run specexport calibrate with several drafts and routes")
    session.prepare()
    decisions = {"routed": fresh(), "named": fresh()}
    decisions |= {name: alone(fresh(), name) for name in routing.drafters}
    again = f"{routing.drafters[0]} again"
    decisions[again] = alone(fresh(), routing.drafters[0])
    stream = [
        (route, prompt)
        for route in given.routes
        for prompt in read_prompts(PROMPTS / f"{route}.jsonl")[given.skip : given.skip + given.limit]
    ]
    random.Random(1).shuffle(stream)
    decode: dict[str, list[float]] = {way: [] for way in decisions}
    whole: dict[str, list[float]] = {way: [] for way in decisions}
    rounds: dict[str, dict[str, int]] = {route: {} for route in given.routes}
    unequal = 0
    for number, (route, prompt) in enumerate(stream):
        ways, texts = list(decisions), set()
        turn = number % len(ways)
        ids = session.encode(prompt)
        for way in (*ways[turn:], *ways[:turn]):
            session.decisions = decisions[way]
            session.reset()
            asked = {"route": route} if way == "named" else {}
            tokens: list[int] = []
            start = first = clock()
            for chunk in session.stream(ids, max_new_tokens=given.max_new_tokens, **asked):
                first = first if tokens else clock()
                tokens += chunk.tokens
            texts.add(tuple(tokens))
            decode[way].append(clock() - first)
            whole[way].append(clock() - start)
            if way == "routed":
                for name, count in chunk.statistics.rounds_by_drafter.items():
                    rounds[route][name] = rounds[route].get(name, 0) + count
        unequal += len(texts) > 1
    best = min(routing.drafters, key=lambda name: sum(decode[name]))
    for label, seconds in (("behind the first round", decode), ("with the prompt", whole)):
        print(label)
        for way in decisions:
            told = ratio_interval(seconds[best], seconds[way])
            print(f"    {way:16} {told.value:.3f} ({told.low:.3f} to {told.high:.3f}) of {best} alone")
        for route in given.routes:
            numbers = [number for number, (name, _) in enumerate(stream) if name == route]
            own = min(routing.drafters, key=lambda name: sum(seconds[name][n] for n in numbers))
            told = ratio_interval([seconds[own][n] for n in numbers], [seconds["routed"][n] for n in numbers])
            print(f"    {route:16} {told.value:.3f} ({told.low:.3f} to {told.high:.3f}) of its best, {own}")
    print(f"rounds by drafter: {rounds}; {unequal} of {len(stream)} texts unequal")


if __name__ == "__main__":
    main()
