"""How well sessions choose the number of draft tokens, replayed on recorded runs at given costs.

    python benchmarks/policy_replay.py demo.bundle --records FILE [--json FILE] [--against FILE]

Records, greedily, 60 prompts of each route (code, prose, random, copy): 30 to calibrate by, 30 to replay. Every
scenario is a session's stream of requests, on hosts with different costs of a draft pass (d) and of a target pass over
five tokens (v(5)), both in plain rounds. Sessions read a clock that goes with the true costs, disturbed by 5 %, and by
a factor of 3 in one round of 50. Printed is the speedup over plain decoding; `best k` is that of the best fixed number
for each kind of request. Nothing is timed, so other work does not disturb it, and the same records give the same table.

--json keeps the table, --against compares with one that was kept: the schedule of another commit, or other constants.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from specexport import Session, load
from specexport.calibration.measuring.confidence import Reading, signal_logits
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.judged_tokens import judged_tokens
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import Record, Recorder, agreement, from_row, misses, record, to_row
from specexport.calibration.measuring.replay import plain_seconds, replay, replay_fixed
from specexport.calibration.measuring.session_replay import conditional_acceptance_rates
from specexport.calibration.measuring.traces import CostsAt, Trace, cached
from specexport.calibration.survival.fit import fit_survival
from specexport.runtime.policy.confidence import adaptive_schedule
from specexport.runtime.policy.controller import RouteState
from specexport.runtime.policy.cost_model import COSTS_VERSION, CostPoint, Costs, MeasuredTime
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.routes import GUESS, RoutePolicy
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
ROUTES = ("code", "prose", "random", "copy")
MIXED = ROUTES[:3]
HOSTS = ((0.1, 1.25), (0.2, 1.7), (0.3, 1.4), (0.15, 1.05))
MOST = 4
# Attention of a plain round at 1900 tokens of context, in plain rounds at none; another row costs a sixth as much.
ATTENTION = 1.0
NOISE, SPIKE, SPIKES = 0.05, 3.0, 0.02
READING = 0.005  # plain rounds that reading the confidence takes, per draft pass


def costs(d: float, v5: float, most: int = MOST, attention: float = 0.0) -> Costs:
    """Costs in plain rounds; the draft's prefill takes a tenth of a pass per token. attention: see `ATTENTION`."""

    def time(seconds: float) -> MeasuredTime:
        return MeasuredTime(seconds, seconds, seconds)

    def point(context: int) -> CostPoint:
        more = attention * context / 1900
        verify = [1 + more + ((v5 - 1) / 4 + more / 6) * k for k in range(most + 1)]
        rounds = tuple(time(k * d + verify[k]) for k in range(most + 1))
        return CostPoint(context, rounds, time(d), tuple(map(time, verify)), (time(0.0),) * (most + 1))

    return Costs(COSTS_VERSION, "", "", "", 0, "", 0.0, 0.1 * d, (point(1), point(2100)))


def traces_of(session: Session, route: str, lines: slice, tokens: int, drafter: str | None = None) -> list[Trace]:
    """Greedy, without times."""
    found = []
    for line, prompt in enumerate(read_prompts(PROMPTS / f"{route}.jsonl")[lines]):
        session.reset()
        ids, recorder = session.encode(prompt), Recorder(session.max_draft_tokens, None)
        output = session.generate(ids, schedule=recorder, max_new_tokens=tokens, drafter=drafter).tokens
        agrees = tuple(agreement(recorder.rounds, output, greedy=True))
        missed = misses(recorder.rounds, agrees)
        found.append(Trace(line, route, len(ids), (*ids, *output), agrees, tokens, missed))
    return found


def records_of(bundle: Path, path: Path, limit: int) -> dict[str, list[Record]]:
    """By route, in `path`, where those that it does not have yet are added."""
    keys = [(route, line) for route in ROUTES for line in range(limit)]
    with Journal.open(path, {"limit": limit}) as journal:
        rows = journal.finished
        missing = [(route, line) for route, line in keys if f"{route} {line}" not in rows]
        if missing:
            with load(bundle, policy=False, threads=1) as session:
                for route, line in missing:
                    prompt = read_prompts(PROMPTS / f"{route}.jsonl")[line]
                    request = Request(line, route, tuple(session.encode(prompt)), 96)
                    row, features = record(session, request, SamplingParameters(), True, timed=False)
                    journal.add(f"{route} {line}", to_row(row, features))
    return {route: [from_row(rows[f"{route} {line}"])[0] for line in range(limit)] for route in ROUTES}


class Clock:
    """Goes with the true costs of rounds, disturbed."""

    def __init__(self) -> None:
        self.now, self._random = 0.0, random.Random(1)

    def __call__(self) -> float:
        return self.now

    def add(self, seconds: float) -> None:
        spike = SPIKE if self._random.random() < SPIKES else 1.0
        self.now += seconds * spike * self._random.lognormvariate(0.0, NOISE)


@dataclass
class Simulated:
    """believed: the costs that it assumes. entries: of the requests that name their kind, else for all."""

    believed: Costs
    true: CostsAt
    drafter: str = "model"
    entries: Mapping[str, RoutePolicy] | RoutePolicy | None = None
    readings: Mapping[int, tuple[float, ...]] | None = None
    reading: Reading | None = None

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.decisions = Decisions(clock=self.clock)
        self.states: dict[str, RouteState] = {}

    def run(self, trace: Trace) -> float:
        """Seconds of a request, by the true costs."""
        key, entry = "", self.entries
        if isinstance(entry, Mapping):
            key, entry = trace.route, entry[trace.route]
        entry = entry or RoutePolicy("undecided", self.drafter, MOST, "adaptive", (GUESS,) * MOST, None)
        state = self.states.setdefault(key, RouteState(timing=self.decisions._timing(self.drafter)))
        reading, logits, chance = self.reading, (), None
        if reading is not None and self.readings is not None:
            logits = self.readings[id(trace)]
            chance = lambda index, row: reading.survival.chance(index, float(row[0, 0]))  # noqa: E731
        schedule = adaptive_schedule(replace(entry, drafter=self.drafter), self.believed, chance, state, MOST)
        spent = 0.0
        for _, one in replay({self.drafter: trace}, schedule, {self.drafter: logits}):
            seconds = one.seconds(self.true) + (one.passes * READING if chance else 0.0)
            self.clock.add(seconds)
            spent += seconds
        return spent


def entry_of(traces: Sequence[Trace], at: CostsAt, drafter: str) -> RoutePolicy:
    """What calibration finds, without intervals: off where the best fixed number loses."""
    plain = sum(plain_seconds(trace, at) for trace in traces)
    best = min(fixed(traces, at, drafter))
    chances = conditional_acceptance_rates(traces, drafter, MOST)
    return RoutePolicy("on" if best < plain else "off", drafter, int(best < plain), "adaptive", chances, None)


def fixed(traces: Sequence[Trace], at: CostsAt, drafter: str) -> list[float]:
    """Seconds with each fixed number of draft tokens, from 1."""
    return [
        sum(one.seconds(at) for trace in traces for one in replay_fixed(trace, drafter, k)) for k in range(1, MOST + 1)
    ]


def shifted(trace: Trace, context: int) -> Trace:
    """The same after `context` tokens that occur nowhere else."""
    filler = tuple(range(-1, -context - 1, -1))
    return replace(trace, tokens=(*filler, *trace.tokens), prompt_tokens=trace.prompt_tokens + context)


def mixed(traces: Mapping[str, list[Trace]], routes: Sequence[str] = MIXED) -> list[Trace]:
    """The routes in turn."""
    return [trace for together in zip(*(traces[route] for route in routes), strict=False) for trace in together]


def scenarios(
    known: Mapping[str, list[Trace]],
    traces: Mapping[str, list[Trace]],
    reading: Reading,
    logits: Mapping[int, tuple[float, ...]],
) -> dict[str, Callable[[Costs], tuple[Simulated, list[Trace]]]]:
    """By name: for a host's costs, a session and its requests."""
    made: dict[str, Callable[[Costs], tuple[Simulated, list[Trace]]]] = {}

    def add(name: str, stream: list[Trace], drafter: str = "model", factor: float = 1.0, **options: object) -> None:
        count, named, read = options.get("prompts"), options.get("named"), options.get("read")

        def make(true: Costs) -> tuple[Simulated, list[Trace]]:
            at, entries = cached(true), None
            if count:
                of = {route: entry_of(known[route][:count], at, drafter) for route in ROUTES}
                every = [trace for route in MIXED for trace in known[route][:count]]
                entries = of if named else entry_of(every, at, drafter)
            believed = wrong(true, factor) if factor != 1.0 else true
            return Simulated(
                believed, at, drafter, entries, logits if read else None, reading if read else None
            ), stream

        made[name] = make

    for prompts in (12, 30):
        add(f"calibrated on {prompts}, named", mixed(traces), prompts=prompts, named=True)
        add(f"calibrated on {prompts}, not named", mixed(traces), prompts=prompts)
    add("calibrated on 30, named, confidence read", mixed(traces), prompts=30, named=True, read=True)
    add("calibrated on 30, not named, confidence read", mixed(traces), prompts=30, read=True)
    for route in ROUTES:
        add(f"{route}, uncalibrated", traces[route] + known[route])
    add("mixed, uncalibrated", mixed(traces))
    add("code, random, code", traces["code"] + traces["random"] + known["code"])
    for drafter in ("ngram", "ngram+model"):
        for route in ("copy", "code", "random"):
            add(f"{route}, uncalibrated, {drafter}", traces[route] + known[route], drafter)
        add(f"mixed, uncalibrated, {drafter}", mixed(traces, ROUTES), drafter)
        add(f"mixed, calibrated on 12, named, {drafter}", mixed(traces, ROUTES), drafter, prompts=12, named=True)
    for context in (500, 1900):
        moved = {route: [shifted(trace, context) for trace in found] for route, found in traces.items()}
        add(f"mixed, uncalibrated, {context} tokens before", mixed(moved))
        add(f"code, uncalibrated, {context} tokens before", moved["code"])
        add(f"mixed, calibrated on 12, named, {context} tokens before", mixed(moved), prompts=12, named=True)
    for factor in (0.5, 2.0, 3.0):
        add(f"code, uncalibrated, drafts believed to take {factor}x", traces["code"] + known["code"], factor=factor)
        add(
            f"random, uncalibrated, drafts believed to take {factor}x",
            traces["random"] + known["random"],
            factor=factor,
        )
        add(
            f"mixed, calibrated on 12, named, drafts believed to take {factor}x",
            mixed(traces),
            prompts=12,
            named=True,
            factor=factor,
        )
        add(
            f"code, uncalibrated, ngram+model, drafts believed to take {factor}x",
            traces["code"] + known["code"],
            "ngram+model",
            factor,
        )
    return made


def wrong(true: Costs, factor: float) -> Costs:
    """As if rounds with a draft took `factor` times as much longer than plain ones as they do."""

    def scaled(time: MeasuredTime, base: MeasuredTime) -> MeasuredTime:
        seconds = base.median + factor * (time.median - base.median)
        return MeasuredTime(seconds, seconds, seconds)

    points = []
    for point in true.points:
        draft = MeasuredTime(*(factor * point.draft.median,) * 3)
        rounds = tuple(scaled(time, point.rounds[0]) for time in point.rounds)
        verify = tuple(scaled(time, point.verify[0]) for time in point.verify)
        points.append(replace(point, rounds=rounds, draft=draft, verify=verify))
    return replace(true, points=tuple(points))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--records", type=Path, required=True, help="made if it does not exist")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--against", type=Path, help="a table that --json wrote")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    arguments = parser.parse_args()
    records = records_of(arguments.bundle, arguments.records, 60)
    every = [one for route in MIXED for one in records[route][::2]]
    survival, _ = fit_survival(judged_tokens(every, [np.zeros((len(one.judged), 0), np.float16) for one in every]), "")
    known = {route: [one.trace for one in found[::2]] for route, found in records.items()}
    traces = {route: [one.trace for one in found[1::2]] for route, found in records.items()}
    logits = {
        id(trace): signal_logits(one, np.zeros((0, 0), np.float16), survival)
        for route, found in records.items()
        for one, trace in zip(found[1::2], traces[route], strict=True)
    }
    reading = Reading(survival, READING, ())
    before = json.loads(arguments.against.read_text(encoding="utf-8")) if arguments.against else {}
    table: dict[str, list[float]] = {}
    print("| scenario | best k | " + " | ".join(f"d {d}, v(5) {v5}" for d, v5 in HOSTS) + " |")
    print("|---" * (2 + len(HOSTS)) + "|")
    for name, make in scenarios(known, traces, reading, logits).items():
        if arguments.only not in name:
            continue
        cells, bests = [], []
        for host in HOSTS:
            session, stream = make(costs(*host, attention=ATTENTION))
            plain = sum(plain_seconds(trace, session.true) for trace in stream)
            spent = sum(session.run(trace) for trace in stream)
            routes = sorted({trace.route for trace in stream})
            kinds = [[trace for trace in stream if trace.route == route] for route in routes]
            best = sum(
                min(*fixed(kind, session.true, session.drafter), sum(plain_seconds(t, session.true) for t in kind))
                for kind in kinds
            )
            table.setdefault(name, []).append(plain / spent)
            bests.append(plain / best)
            cells.append(f"{plain / spent:.3f}")
            if name in before:
                change = plain / spent / before[name][len(cells) - 1]
                cells[-1] += f" ({change - 1:+.1%}{' !' if change < 0.98 else ''})"
        print(f"| {name} | {' '.join(f'{best:.2f}' for best in bests)} | {' | '.join(cells)} |", flush=True)
    if before:
        changes = [
            one / other
            for name, row in table.items()
            if name in before
            for one, other in zip(row, before[name], strict=True)
        ]
        slowest = min(map(min, table.values()))
        print(f"\nover the other table: mean {np.mean(changes):.4f}, least {min(changes):.3f}")
        print(f"over plain: least {slowest:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
