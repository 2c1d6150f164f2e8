"""Chains against every other drafter, as `specexport calibrate` weighs them, on recorded text at given costs.

    python benchmarks/chain_replay.py BUNDLE [--routes code prose random] [--skip N] [--limit N]

Records, greedily, which of the target's tokens the draft predicts, and its own tokens where it does not. On these,
adaptive sessions are replayed with every drafter and every chain of a lookup and the draft, each half of a route's
prompts by what is known about the other half. d and v(5) are in plain rounds; an additional row of the draft's pass
takes --row of a pass. Nothing is timed, so other work does not disturb it. Intervals are 95 %, by prompt. A session
uses a chain above 1.05.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from policy_replay import costs, traces_of
from specexport import load
from specexport.calibration.measuring.routed_replay import Priced
from specexport.calibration.measuring.trace_replay import plain_seconds
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.calibration.verdicts.routing import Stream, unrouted
from specexport.runtime.drafting.names import all_chains, all_drafters, cascade_source_of, model_of

HOSTS = ((0.1, 1.4), (0.15, 1.05), (0.3, 1.4), (0.3, 1.05), (0.6, 1.05))  # d and v(5)


def row(traces: list[Trace], host: tuple[float, float], most: int, share: float) -> str:
    """A route on a host: the best drafter without a chain, the draft alone, and the best chain against both."""
    priced = replace(costs(*host, most), draft_row=share * host[0])
    names = (*all_drafters(("model",)), *all_chains(("model",)))
    stream = Stream([dict.fromkeys(names, trace) for trace in traces], dict.fromkeys(names, Priced(priced)))
    seconds = unrouted(stream)
    best = min((name for name in names if not cascade_source_of(name)), key=lambda name: sum(seconds[name]))
    chain = min((name for name in names if cascade_source_of(name)), key=lambda name: sum(seconds[name]))
    plain, cells = [plain_seconds(trace, cached(priced)) for trace in traces], [f"{host[0]}, {host[1]}"]
    cells += [traces[0].route, f"{best} {sum(plain) / sum(seconds[best]):.2f}"]
    cells += [f"{chain} {sum(plain) / sum(seconds[chain]):.2f}"]
    for other in (best, str(model_of(chain))):
        gain = ratio_interval(seconds[other], seconds[chain])
        cells.append(f"{gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose", "copy", "random"])
    parser.add_argument("--skip", type=int, default=0, help="how many prompts of each route to skip first")
    parser.add_argument("--limit", type=int, default=20, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--row", type=float, default=0.05)
    given = parser.parse_args()
    lines = slice(given.skip, given.skip + given.limit)
    with load(given.bundle, policy=False, threads=1) as session:
        most = session.max_draft_tokens
        traces = {route: traces_of(session, route, lines, given.max_new_tokens) for route in given.routes}
    heads = ("d, v(5)", "route", "best without a chain", "best chain", "of that", "of its draft alone")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for host in HOSTS:
        for found in traces.values():
            print(row(found, host, most, given.row), flush=True)


if __name__ == "__main__":
    main()
