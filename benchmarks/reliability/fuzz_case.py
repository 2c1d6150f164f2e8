"""One damaged bundle: made of hard links to an intact one, and loaded and run in its own process."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import specexport

from .mutations import bytes_damaged, json_damaged

MANIFEST = "manifest.json"
OWN = ("manifest.json", "policy.json", "costs.json", "survival.json")  # files that the manifest does not list
MAX_MEMORY = 6 << 30  # bytes per process; a bundle that needs more must cause an error
NEW_TOKENS = 12
LONGEST_ERROR = 2000  # characters; a line may contain a path and a list, but not the content of a file


@dataclass(frozen=True)
class Case:
    """file: the damaged file. fixed: whether its size and digest in the manifest are corrected, unlike by accident."""

    number: int
    file: str
    way: str
    fixed: bool


@dataclass(frozen=True)
class Outcome:
    """kind: `error`, `right`, `wrong`, `traceback`, `crash` or `hang`. told: the error, or the output instead."""

    kind: str
    told: str
    seconds: float


def draw(seed: int, number: int, files: list[str]) -> tuple[Case, random.Random]:
    chance = random.Random(f"{seed}-{number}")
    file = chance.choice(files)
    as_json = file.endswith(".json") and chance.random() < 0.7
    weights = file.endswith(".weights")  # with a correct digest it would be another, valid model
    fixed = file not in OWN and not weights and chance.random() < 0.7
    return Case(number, file, "json" if as_json else "bytes", fixed), chance


def make(intact: Path, folder: Path, case: Case, chance: random.Random) -> None:
    """Make the damaged bundle at `folder`, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in intact.rglob("*"):
        own = folder / path.relative_to(intact)
        own.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            os.link(path, own)
    data = (intact / case.file).read_bytes()
    damaged = (json_damaged if case.way == "json" else bytes_damaged)(data, chance)
    _replace(folder / case.file, damaged)
    if case.fixed:
        manifest = json.loads((intact / MANIFEST).read_text(encoding="utf-8"))
        manifest["files"][case.file] = {"bytes": len(damaged), "sha256": sha256(damaged).hexdigest()}
        _replace(folder / MANIFEST, json.dumps(manifest).encode())


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def answers(bundle: Path, policy: bool = True) -> list[Any]:
    """The bundle's answers to a text, greedy and with a seed, and to messages."""
    with specexport.load(bundle, threads=1, policy=policy) as session:
        found = [
            session.generate("def main():\n", max_new_tokens=NEW_TOKENS),
            session.generate("The value", max_new_tokens=NEW_TOKENS, temperature=0.8, seed=7, num_draft_tokens=2),
            session.generate([{"role": "user", "content": "Why?"}], max_new_tokens=NEW_TOKENS, speculate=False),
        ]
    return [[list(generation.tokens), generation.text, generation.finish_reason] for generation in found]


def import_all(bundle: Path) -> None:
    """Import what an answer imports, so that the forks of this process have it. None of it starts a thread."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answers(bundle)
            os.write(writing, "\n".join(sys.modules).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as told:
        names = told.read().split()
    os.waitpid(child, 0)
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def judge(bundle: Path, expected: list[Any], policy: bool, limit: float) -> Outcome:
    """Load and run a bundle in a fork of this process, which must not have started a thread; killed after `limit`
    seconds.

    policy: whether the files of calibration are read; they belong to another bundle if the manifest has another digest.
    """
    reading, writing = os.pipe()
    start, child = time.monotonic(), os.fork()
    if not child:
        os.close(reading)
        _in_child(bundle, expected, policy, writing)
    os.close(writing)
    told = b""
    while True:
        left = start + limit - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            break
        piece = os.read(reading, 65536)
        if not piece:
            break
        told += piece
    os.close(reading)
    status, seconds = os.waitpid(child, 0)[1], time.monotonic() - start
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and seconds >= limit:
            return Outcome("hang", f"nothing after {limit:.0f} s", seconds)
        return Outcome("crash", signal.Signals(number).name, seconds)
    if not told:
        return Outcome("crash", f"exit code {os.WEXITSTATUS(status)} without a word", seconds)
    kind, line = json.loads(told)
    return Outcome(kind, line, seconds)


def _in_child(bundle: Path, expected: list[Any], policy: bool, writing: int) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        os.write(writing, json.dumps(_outcome(bundle, expected, policy)).encode())
        os._exit(0)
    finally:
        os._exit(3)


def _outcome(bundle: Path, expected: list[Any], policy: bool) -> tuple[str, str]:
    try:
        found = answers(bundle, policy)
    except specexport.SpecExportError as error:
        told = str(error)
        if "\n" in told or len(told) > LONGEST_ERROR:
            return "traceback", f"an error of {len(told)} characters or several lines: {told[:500]!r}"
        return "error", f"{type(error).__name__}: {told}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno} {last.name}"
        return "traceback", f"{type(error).__name__} at {place}: {str(error)[:300]}"
    return ("right", "") if found == expected else ("wrong", json.dumps(found)[:300])
