"""Choosing among drafts round by round, for requests that name no route.

    python benchmarks/routing.py BUNDLE [--routes code prose] [--keeps 0.6] [--skip N] [--limit N]
    python benchmarks/routing.py BUNDLE --drafters model random --routes code random [--skip N] [--limit N]

Uses two specialized drafts, one per route, derived from one recorded draft: on the other's route, each keeps only the
share `--keeps` of the tokens that the recorded draft predicts. With `--drafters` it uses drafts of the bundle, each
recorded separately, alone and after lookups. Replayed like in `specexport calibrate`
(`calibration/verdicts/routing.py`), with the schedule of a session: each half of the requests is routed by what is
known about the other half, by rounds alone, and by prompt and rounds.

Compared with each draft alone, adapting, and with named routes. d and v(5) are in plain rounds. Nothing is timed;
`benchmarks/routed.py` times sessions.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from policy_replay import costs, traces_of
from specexport import load
from specexport.calibration.measuring.routed_replay import Priced, Runs, aligned
from specexport.calibration.measuring.trace_replay import plain_seconds
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.verdicts.routing import Stream, routed, unrouted
from specexport.runtime.drafting.names import LOOKUP_NAMES

HOSTS = ((0.12, 1.4), (0.3, 1.4), (0.15, 1.05))  # d and v(5)
MOST = 4


def specialists(trace: Trace, routes: Sequence[str], keeps: float, draw: random.Random) -> dict[str, Trace]:
    """Drafts that are specialized in one route each, by its name."""

    def agrees(right: bool | None, own: bool) -> bool | None:
        return right if own or not right else draw.random() < keeps

    own = {route: tuple(agrees(right, route == trace.route) for right in trace.agrees) for route in routes}
    return {route: replace(trace, agrees=found) for route, found in own.items()}


def behind_lookups(stream: Sequence[Runs], lookup: str) -> list[Runs]:
    return [{lookup + name: trace for name, trace in runs.items()} for runs in stream]


def told(stream: Stream, vocab: int) -> list[str]:
    """The results, as lines of text."""
    alone = unrouted(stream)
    best = min(alone, key=lambda name: sum(alone[name]))
    of_route = {route: (numbers, unrouted(stream.only(numbers))) for route, numbers in stream.routes().items()}
    named = {route: min(map(sum, found.values())) for route, (_, found) in of_route.items()}
    at = cached(stream.drafters[best].costs)
    plain = sum(plain_seconds(trace, at) for trace in stream.traces(best))
    whole = sum(alone[best])
    lines = [f"{best} alone {plain / whole:.3f}x, routes named {whole / sum(named.values()):.3f} of that"]
    for way, size in (("rounds alone", 0), ("prompt and rounds", vocab)):
        seconds, _ = routed(stream, size)
        shares = ", ".join(
            f"{route} {named[route] / sum(seconds[number] for number in numbers):.3f}"
            for route, (numbers, _) in of_route.items()
        )
        lines.append(f"    by {way:18} {whole / sum(seconds):.3f} of one draft; of each route's best {shares}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose"])
    parser.add_argument("--drafters", nargs="+", default=[])
    parser.add_argument("--keeps", type=float, default=0.6)
    parser.add_argument("--skip", type=int, default=24)  # constants were chosen on these
    parser.add_argument("--limit", type=int, default=36)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    given = parser.parse_args()
    routes, draw = given.routes, random.Random(1)
    session = load(given.bundle, policy=False)
    lines = slice(given.skip, given.skip + given.limit)
    if given.drafters:
        drafts = {
            name: [one for route in routes for one in traces_of(session, route, lines, given.max_new_tokens, name)]
            for name in given.drafters
        }
        stream = [aligned(dict(zip(drafts, runs, strict=True))) for runs in zip(*drafts.values(), strict=True)]
    else:
        traces = [one for route in routes for one in traces_of(session, route, lines, given.max_new_tokens)]
        stream = [specialists(trace, routes, given.keeps, draw) for trace in traces]
    draw.shuffle(stream)
    vocab = session.bundle.manifest.target.vocab_size
    for (d, v5), lookup in product(HOSTS, ("", "ngram+")):
        prices = Priced(costs(d, v5, MOST))
        models = [{n: trace for n, trace in runs.items() if n not in LOOKUP_NAMES} for runs in stream]
        requests = behind_lookups(models, lookup) if lookup else stream
        first, *others = told(Stream(requests, dict.fromkeys(requests[0], prices)), vocab)
        print("\n".join([f"d {d}, v(5) {v5}: {first}", *others]))


if __name__ == "__main__":
    main()
