"""Full and read-only disks, files that change while they are read, two writers at once.

Small file systems are mounted, which needs root on Linux; otherwise those rows are left out, with a note.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import forks
from .client import ask
from .good import COMPLETIONS
from .serving import Server

KIB = 1 << 10
REFUSED = "refused in one line"
Row = dict[str, Any]


def disk(bundle: Path, count: int, seed: int) -> dict[str, Any]:
    """Run the tests; returns figures and findings as JSON. count: how many sizes of a disk to fill by builds."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # threads must not be forked
        rows = pool.apply(_builds, (count, seed))
    rows.append(_replaced(bundle))
    rows.append(_read_only_cache(bundle))
    wrong = [f"{row['what']}: {line}" for row in rows for line in row.pop("wrong")]
    return {"passed": not wrong, "rows": rows, "wrong": wrong, "options": {"sizes": count, "seed": seed}}


@contextlib.contextmanager
def mounted(folder: Path, kib: int) -> Iterator[bool]:
    """A file system of `kib` KiB at `folder`; the value is False if this user may not mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False).returncode == 0 if shutil.which("mount") else False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", str(folder)], check=True)


def row(what: str, times: int, found: object, wrong: list[str]) -> Row:
    return {"what": what, "times": times, "found": str(found), "wrong": wrong}


def _builds(count: int, seed: int) -> list[Row]:
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    from .trials import import_exporter, small_build

    with tempfile.TemporaryDirectory(prefix="disk-") as name:
        folder = Path(name)
        import_exporter(folder)
        return [
            *_full(folder, small_build, count, seed),
            _read_only_stages(folder, small_build),
            _together(folder, small_build),
        ]


def _full(folder: Path, build: Any, count: int, seed: int) -> list[Row]:
    """Builds whose output, cache, or both are on a disk with room for only a part of them."""
    place, log, chance = folder / "disk", folder / "log", random.Random(f"{seed}-disk")
    found, wrong = Counter[str](), list[str]()
    with mounted(place, 64 * KIB) as can:
        if not can:
            return [row("a disk that is full", 0, "not run: no file system could be mounted", [])]
        done = forks.run(lambda: build(folder, place / "out.bundle", place / "stages"), log)
        if not done.fine:
            return [row("a disk with room enough", 1, "", [done.in_a_line])]
        needed = sum(path.stat().st_size for path in place.rglob("*")) // KIB
    for number in range(count):
        output = (folder if number % 3 == 2 else place) / "out.bundle"
        cache = (folder if number % 3 == 1 else place) / "stages"
        with mounted(place, chance.randint(8, needed * 5 // 4)):
            done = forks.run(lambda: build(folder, output, cache), log)  # noqa: B023
            kind, fault = judged(done, sorted(path.name for path in output.parent.glob("*out.bundle*")))
            found[kind] += 1
            wrong += [fault] if fault else []
        shutil.rmtree(folder / "out.bundle", ignore_errors=True)
    return [row(f"a disk of 8 to {needed * 5 // 4} KiB, {needed} are needed", count, dict(found), wrong)]


def _read_only_stages(folder: Path, build: Any) -> Row:
    """A build whose cache cannot be written says so at once."""
    place = folder / "disk"
    with mounted(place, 64) as can:
        if not can:
            return row("a build whose cache is read-only", 0, "not run: no file system could be mounted", [])
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        done = forks.run(lambda: build(folder, folder / "out.bundle", place / "stages"), folder / "log")
    kind, fault = judged(done, [path.name for path in folder.glob("*out.bundle*")])
    wrong = fault or ("it was built" if done.fine else "")
    return row(
        "a build whose cache is read-only", 1, f"{kind}: {forks.last_words(done.told, 120)}", [wrong] * bool(wrong)
    )


def judged(done: forks.Ended, left: list[str]) -> tuple[str, str]:
    """(the result of a build on a small disk, what is wrong with it). left: names in the output's folder."""
    kind = "built" if done.fine else REFUSED if done.refused else "neither"
    right = left == ["out.bundle"] if done.fine else done.refused and not left
    return kind, "" if right else f"left {left}, {done.in_a_line}"


def both_judged(codes: tuple[int, ...], logs: list[str], left: list[str]) -> str:
    """What is wrong with two builds into one output, one of which may find it existing. codes, logs: of each."""
    refusals = [forks.one_line(log) for code, log in zip(codes, logs, strict=True) if code]
    if sorted(codes) in ([0, 0], [0, 1]) and all(refusals) and not left:
        return ""
    return f"codes {codes}, left {left}: {' / '.join(map(forks.last_words, logs))}"


def _together(folder: Path, build: Any) -> Row:
    """Two builds into one output with one cache."""
    from specexport.bundle import Bundle

    wrong, codes = list[str](), Counter[tuple[int, ...]]()
    for number in range(4):
        place = folder / f"both-{number}"
        place.mkdir()
        output, force = place / "out.bundle", number % 2 == 1
        both = [
            forks.start(lambda: build(folder, output, place / "stages", force), place / f"log{one}")  # noqa: B023
            for one in range(2)
        ]
        ended = tuple(forks.wait(child) for child in both)
        codes[tuple(sorted(ended))] += 1
        logs = [(place / f"log{one}").read_text(errors="replace", encoding="utf-8") for one in range(2)]
        Bundle.open(output)
        fault = both_judged(ended, logs, [path.name for path in place.glob(".out.bundle*")])
        wrong += [fault] if fault else []
        shutil.rmtree(place)
    told = ", ".join(f"exit codes {' and '.join(map(str, ended))}: {times}" for ended, times in sorted(codes.items()))
    return row("two builds into one output and one cache", 4, told, wrong)


def _said(server: Server) -> str | None:
    body = json.dumps({"prompt": "def main():", "max_tokens": 24, "temperature": 0}).encode()
    return ask(server.port, "POST", COMPLETIONS, body).told


def _replaced(bundle: Path) -> Row:
    """The folder that a server has loaded is replaced by another one, like `build --force` does."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="disk-") as name:
        folder = Path(name)
        served = Path(shutil.copytree(bundle, folder / "served.bundle"))
        server = Server(served, folder / "log", folder / "cache", "--threads", "1")
        try:
            before = _said(server)
            served.rename(folder / "old")
            shutil.copytree(bundle, served)
            (served / "manifest.json").write_text("{}", encoding="utf-8")  # a server of the old one must not read this
            shutil.rmtree(folder / "old")
            if before is None or _said(server) != before:
                wrong.append("it answers otherwise than before")
        finally:
            code = server.end()
        if code:
            wrong.append(f"it ended with {code}")
    return row("a bundle replaced and deleted under a running server", 1, "the same answers as before", wrong)


def _read_only_cache(bundle: Path) -> Row:
    """The costs of rounds cannot be cached: each start measures them again, and everything else works as usual."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="disk-") as name:
        folder = Path(name)
        with mounted(folder / "cache", 64) as can:
            if not can:
                return row("a read-only cache", 0, "not run: no file system could be mounted", [])
            subprocess.run(["mount", "-o", "remount,ro", str(folder / "cache")], check=True)
            server = Server(bundle, folder / "log", folder / "cache", "--threads", "1")
            if _said(server) is None:
                wrong.append("no answer")
            if code := server.end():
                wrong.append(f"it ended with {code}")
    return row("a server whose cache is read-only", 1, "starts and answers", wrong)
