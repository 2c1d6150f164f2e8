"""The command line: which parts run, and which figures are kept."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardware import describe_hardware

from .disk import disk
from .fuzz import FuzzOptions, fuzz
from .kills import KILLED, kills
from .report import render
from .soak import SoakOptions, soak

Part = Callable[[Path, argparse.Namespace], dict[str, Any]]


def _soak(bundle: Path, given: argparse.Namespace) -> dict[str, Any]:
    return soak(bundle, SoakOptions(minutes=given.minutes, seed=given.seed))


def _fuzz(bundle: Path, given: argparse.Namespace) -> dict[str, Any]:
    return fuzz(bundle, FuzzOptions(given.mutations, given.seed, given.workers, given.first))


def _kills(bundle: Path, given: argparse.Namespace) -> dict[str, Any]:
    return kills(bundle, given.kills, given.seed, given.killed or KILLED)


def _disk(bundle: Path, given: argparse.Namespace) -> dict[str, Any]:
    return disk(bundle, given.sizes, given.seed)


PARTS: dict[str, Part] = {"soak": _soak, "fuzz": _fuzz, "kills": _kills, "disk": _disk}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/reliability", description="What a server, a bundle and a build survive."
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0, help="duration of the soak test")
    parser.add_argument("--mutations", type=int, default=10_000, help="how many mutations the fuzzer tries")
    parser.add_argument("--first", type=int, default=0, help="number of the fuzzer's first mutation")
    parser.add_argument("--workers", type=int, default=1, help="processes of the fuzzer")
    parser.add_argument(
        "--kills", type=int, default=50, help="how many builds, calibrations, tunings and servers to kill, each"
    )
    parser.add_argument("--killed", action="append", choices=KILLED, help="repeatable; all by default")
    parser.add_argument("--sizes", type=int, default=50, help="how many sizes of a disk to fill by builds")
    parser.add_argument("-o", "--output", type=Path, default=Path("reliability.md"))
    given = parser.parse_args(arguments)
    kept = given.output.with_suffix(".json")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    bundle, failed = given.bundle.resolve(), False
    for name in given.part or PARTS:
        found[name] = PARTS[name](bundle, given) | {"host": describe_hardware()}
        failed = failed or not found[name]["passed"]
        kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
        given.output.write_text(render(found), encoding="utf-8")
        print(f"{name}: {'passed' if found[name]['passed'] else 'FAILED'}", flush=True)
    return int(failed)
