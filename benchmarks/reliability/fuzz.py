"""Randomly damaged bundles: each must load and answer correctly, or be refused in one line."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import specexport
from specexport.bundle import Bundle
from specexport.runtime.drafting.names import check_drafter
from specexport.runtime.policy.cost_model import COSTS, COSTS_VERSION, CostPoint, Costs, MeasuredTime
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity, describe_host
from specexport.runtime.policy.routes import POLICY, POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.policy.survival import SURVIVAL, SURVIVAL_VERSION, Curve, Survival

from .fuzz_case import MANIFEST, Case, Outcome, answers, draw, import_all, judge, make

PART = 50  # mutations per task of a worker
LIMIT = 60.0  # seconds per case, many times the time of the intact bundle
FINE = ("error", "right")


@dataclass(frozen=True)
class FuzzOptions:
    """first: the number of the first mutation, so that a single one can be repeated."""

    mutations: int = 10_000
    seed: int = 0
    workers: int = 1
    first: int = 0


def fuzz(bundle: Path, options: FuzzOptions) -> dict[str, Any]:
    """Run the mutations; returns figures and findings as JSON."""
    start, found = time.monotonic(), list[tuple[Case, Outcome]]()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        intact = Path(folder) / "intact.bundle"
        expected = _in_fork(prepare, bundle, intact)
        numbers = range(options.first, options.first + options.mutations)
        parts = [numbers[begin : begin + PART] for begin in range(0, len(numbers), PART)]
        # Workers are spawned, so that they have no state of this process, and fork for each case.
        context = multiprocessing.get_context("spawn")
        with context.Pool(options.workers, _begin, (intact,)) as pool:
            work = partial(_run, intact, Path(folder), expected, options)
            try:
                for done in pool.imap_unordered(work, parts):
                    found += done
                    if len(found) % 1000 < PART:
                        print(f"{len(found)} mutations", file=sys.stderr, flush=True)
            except KeyboardInterrupt:
                print("stopped; what is done is reported", file=sys.stderr)
    return report(found, options) | {"seconds": time.monotonic() - start}


def prepare(bundle: Path, intact: Path) -> list[Any]:
    """A copy with the files that calibration would leave, so that these can be damaged too; returns its answers."""
    shutil.copytree(bundle, intact, ignore=shutil.ignore_patterns("report.md"))
    opened = Bundle.open(intact)
    identity, most = bundle_identity(opened), opened.manifest.contract.max_draft_tokens
    first = opened.manifest.first_draft
    drafter = check_drafter(None, opened.manifest.draft_names)
    entry = RoutePolicy("on", drafter, 1, "adaptive", (0.6,) * most, None)
    policy = Policy(POLICY_VERSION, identity, "onnxruntime", "2026", 0.0, 0.9, entry, {"code": entry})
    time_of = MeasuredTime(0.001, 0.001, 0.002)
    times = (time_of,) * (most + 1)
    points = tuple(CostPoint(context, times, time_of, times, times) for context in (16, 64))
    with specexport.load(intact, threads=1) as session:
        host = describe_host(opened.manifest, session.engine.name, session.engine.device)
    costs = Costs(COSTS_VERSION, identity, host, "onnxruntime", 1, "2026", 0.001, 0.001, points)
    curve = Curve((-2.0, 0.0, 2.0), (0.2, 0.5, 0.9))
    survival = Survival(SURVIVAL_VERSION, identity, (curve,) * most)
    for value, name in ((policy, POLICY), ({first: costs}, COSTS), ({first: survival}, SURVIVAL)):
        write_decision(opened, value, name)
    return answers(intact)


def damaged_files(intact: Path) -> list[str]:
    """The files that loading and running a bundle reads: manifest and tokenizer as often as all others together."""
    manifest = Bundle.open(intact, check_digests=False).manifest
    graphs = [graph for model in manifest.models.values() for graph in model.graphs.values()]
    others = [POLICY, COSTS, SURVIVAL, *graphs, manifest.target.weights]
    if manifest.text.chat_template is not None:
        others.append(manifest.text.chat_template)
    return [*others, *[MANIFEST, manifest.text.tokenizer] * 2]


def _in_fork(work: Any, *arguments: Any) -> Any:
    """Run `work` in its own process, so that this one gets no threads of an engine."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _begin(intact: Path) -> None:
    """Prepare a worker, before it forks."""
    import_all(intact)


def _run(
    intact: Path, folder: Path, expected: list[Any], options: FuzzOptions, numbers: range
) -> list[tuple[Case, Outcome]]:
    files, found, place = damaged_files(intact), [], folder / f"{os.getpid()}.bundle"
    for number in numbers:
        case, chance = draw(options.seed, number, files)
        make(intact, place, case, chance)
        outcome = judge(place, expected, not case.fixed, LIMIT)
        found.append((case, outcome))
        if outcome.kind not in FINE and not _another_model(case, outcome):
            print(f"{number} {case.file}: {outcome.kind}: {outcome.told}", file=sys.stderr, flush=True)
    return found


def report(found: list[tuple[Case, Outcome]], options: FuzzOptions) -> dict[str, Any]:
    counts = Counter((case.file, case.fixed, outcome.kind) for case, outcome in found)
    bad = sorted(_bad(found), key=lambda entry: entry["number"])
    # With a corrected digest, a graph is another model, which only `specexport verify` can tell from the right one.
    return {
        "options": asdict(options) | {"mutations": len(found)},
        "passed": not [entry for entry in bad if not entry["another_model"]],
        "counts": [[file, fixed, kind, count] for (file, fixed, kind), count in sorted(counts.items())],
        "bad": bad[:300],
        "slowest": max((outcome.seconds for _, outcome in found), default=0.0),
    }


def _bad(found: list[tuple[Case, Outcome]]) -> Iterator[dict[str, Any]]:
    for case, outcome in found:
        if outcome.kind not in FINE:
            another = _another_model(case, outcome)
            yield asdict(case) | {"kind": outcome.kind, "told": outcome.told, "another_model": another}


def _another_model(case: Case, outcome: Outcome) -> bool:
    """Whether the output differs, but the digest in the manifest was corrected."""
    return case.fixed and outcome.kind == "wrong"
