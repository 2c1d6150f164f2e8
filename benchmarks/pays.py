"""Does speculation pay on the demo pair? Decided on one half of the held-out prompts, confirmed on the other.

    python benchmarks/pays.py demo.bundle [--limit N] [--threads N] [--json FILE]

1. `calibrate` on every second prompt of the routes code, prose and random.
2. On the other prompts plain decoding, every fixed number of the draft's tokens, and the adaptive session (with and
   without naming the route), interleaved on each prompt. Tables: speedup over plain by route and on the stream of all
   routes, with 95 % intervals by prompt; adaptive against the best fixed number; predicted against measured; what
   recording costs.

Writes into the bundle what `specexport calibrate` writes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from specexport import Session, load
from specexport.bundle import ALIAS
from specexport.calibration.calibrate import calibrate
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import Recorder
from specexport.calibration.options import CalibrateOptions
from specexport.calibration.report import verdicts, write_report
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.calibration.statistics.results import Analysis, Interval
from specexport.runtime.policy.files import REPORT
from specexport.runtime.policy.host_identity import describe_host
from specexport.runtime.sampling.parameters import SamplingParameters

ROUTES = ("code", "prose", "random")
PROMPTS = Path(__file__).parent.parent / "examples/prompts"
PLAIN, NAMED, UNNAMED, RECORDED = "plain", "adaptive", "adaptive, route not named", "recorded"


@dataclass(frozen=True)
class Timed:
    """One prompt: seconds after the prefill by way of decoding, and whether all ways gave the same tokens."""

    route: str
    seconds: dict[str, float]
    equal: bool


def requests(session: Session, limit: int | None, max_new_tokens: int) -> tuple[list[Request], list[Request]]:
    """(requests to decide by, requests to confirm on), alternating between all routes."""
    halves: tuple[list[Request], list[Request]] = ([], [])
    for number, route in enumerate(ROUTES):
        lines = [json.loads(line) for line in (PROMPTS / f"{route}.jsonl").read_text(encoding="utf-8").splitlines()]
        for place, line in enumerate(lines):
            request = Request(1000 * number + place, route, tuple(session.encode(line["prompt"])), max_new_tokens)
            if limit is None or place // 2 < limit:
                halves[place % 2].append(request)
    return halves[0], sorted(halves[1], key=lambda request: request.line % 1000)


def time_all(session: Session, prompts: list[Request]) -> list[Timed]:
    most = session.max_draft_tokens
    ways: dict[str, SamplingParameters] = {
        PLAIN: SamplingParameters(speculate=False),
        NAMED: SamplingParameters(),
        UNNAMED: SamplingParameters(),
        RECORDED: SamplingParameters(drafter=ALIAS),
    }
    ways |= {f"k = {k}": SamplingParameters(num_draft_tokens=k, drafter=ALIAS) for k in range(1, most + 1)}
    names, found = list(ways), []
    for number, request in enumerate(prompts):
        seconds: dict[str, float] = {}
        tokens = set()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            params = replace(ways[name], max_new_tokens=request.max_new_tokens)
            if name == NAMED:
                params = replace(params, route=request.route)
            schedule = Recorder(most, session.drafts.confidence(None)) if name == RECORDED else None
            session.reset()
            generation = session.generate(request.tokens, params, schedule)
            seconds[name] = generation.statistics.decode_seconds
            tokens.add(generation.tokens)
        found.append(Timed(request.route, seconds, len(tokens) == 1))
    return found


def ratio(timed: list[Timed], one: str, other: str) -> Interval:
    """Time of `one` divided by that of `other`."""
    return ratio_interval([entry.seconds[one] for entry in timed], [entry.seconds[other] for entry in timed])


def text(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def tables(timed: list[Timed], analysis: Analysis) -> tuple[str, dict[str, object]]:
    most = analysis.max_draft_tokens
    fixed = [f"k = {k}" for k in range(1, most + 1)]
    streams = {route: [entry for entry in timed if entry.route == route] for route in ROUTES} | {"all": timed}
    lines = ["speedup over plain | " + " | ".join(streams), "|".join(["---"] * (len(streams) + 1))]
    rows: dict[str, object] = {}
    for name in (*fixed, NAMED, UNNAMED):
        cells = {stream: ratio(entries, PLAIN, name) for stream, entries in streams.items()}
        lines.append(f"{name} | " + " | ".join(map(text, cells.values())))
        rows[name] = {stream: vars(cell) for stream, cell in cells.items()}
    best = {
        stream: min(fixed, key=lambda name, e=entries: sum(one.seconds[name] for one in e))
        for stream, entries in streams.items()
    }  # type: ignore[misc]
    lines.append("best fixed | " + " | ".join(best.values()))
    for name in (NAMED, UNNAMED):
        cells = {stream: ratio(entries, best[stream], name) for stream, entries in streams.items()}
        lines.append(f"{name} / best fixed | " + " | ".join(map(text, cells.values())))
        rows[f"{name} / best fixed"] = {stream: vars(cell) for stream, cell in cells.items()}
    overhead = ratio(timed, RECORDED, f"k = {most}")
    lines += [
        "",
        f"recording, time over that of k = {most}: {text(overhead)}",
        "",
        "predicted on the first half | measured on the other | apart",
        "---|---|---",
    ]
    rows["recording"] = vars(overhead)
    for route in analysis.routes:
        for candidate in route.candidates:
            if candidate.drafter == route.candidates[0].drafter:  # the first draft alone
                name = f"k = {candidate.num_draft_tokens}"
                measured = ratio(streams[route.route], PLAIN, name)
                apart = candidate.speedup.value / measured.value - 1
                lines.append(f"{route.route}, {name}: {text(candidate.speedup)} | {text(measured)} | {apart:+.1%}")
        if route.adaptive is not None:
            measured = ratio(streams[route.route], PLAIN, NAMED)
            apart = route.adaptive.speedup.value / measured.value - 1
            what = f"{route.route}, adaptive by {route.adaptive.drafter}"
            lines.append(f"{what}: {text(route.adaptive.speedup)} | {text(measured)} | {apart:+.1%}")
        here = route.measured
        apart = here.predicted / here.speedup.value - 1
        name = f"{route.route}, k = {here.num_draft_tokens}, both on the first half"
        lines.append(f"{name}: {here.predicted:.3f} | {text(here.speedup)} | {apart:+.1%}")
    lines += ["", f"same tokens all ways: {sum(entry.equal for entry in timed)} of {len(timed)} prompts"]
    return "\n".join(lines), rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--limit", type=int, help="prompts of each half and route")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=0, help="use 1 if other work shares the cores")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    session = load(arguments.bundle, policy=False, threads=arguments.threads)
    deciding, confirming = requests(session, arguments.limit, arguments.max_new_tokens)
    analysis = calibrate(session, deciding, CalibrateOptions(), "python benchmarks/pays.py")
    write_report(analysis, arguments.bundle / REPORT)
    print(verdicts(analysis))
    timed = time_all(Session(session.bundle, session.engine, session.threads), confirming)
    table, rows = tables(timed, analysis)
    print(
        f"\n{describe_host(session.bundle.manifest, session.engine.name, session.engine.device)}; "
        f"{len(deciding)} prompts to decide by, {len(confirming)} to confirm on\n"
    )
    print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"host": analysis.host, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
