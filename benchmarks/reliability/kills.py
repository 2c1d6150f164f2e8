"""`kill -9` at random moments: the next start must work, and must not use half-written files."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import forks
from .client import ask, leave
from .good import COMPLETIONS
from .serving import Server

WHOLE = 8  # kills between two runs that may finish
MADE = ("build", "calibrate", "tune")
KILLED = (*MADE, "serve")


@dataclass
class Trial:
    """run: what is killed. check: what must hold after a kill. ended: what must hold after a run that finished; it also
    removes what that run has made.
    """

    run: forks.Work
    check: Callable[[], None]
    ended: Callable[[], None]
    killed: int = 0
    whole: int = 0
    wrong: list[str] = field(default_factory=list)

    def go(self, name: str, kills: int, log: Path, chance: random.Random) -> dict[str, Any]:
        """Kill runs at random moments, one after another, with a run that may finish now and then."""
        seconds = self._whole(log)
        while self.killed < kills and not self.wrong:
            done = forks.run(self.run, log, chance.uniform(0, seconds))
            if done.code == -signal.SIGKILL:
                self.killed += 1
                self._checked(self.check, f"kill {self.killed}")
            elif not done.fine:
                self.wrong.append(f"run before kill {self.killed + 1}: {done.in_a_line}")
            else:
                self._checked(self.ended, "a run that was quicker")
            if self.killed % WHOLE == WHOLE - 1:
                self._whole(log)
        self._whole(log)
        told = f"{self.whole} runs behind kills came to their end, {len(self.wrong)} faults"
        return {"what": f"{name}, {seconds:.1f} s", "times": self.killed, "found": told, "wrong": self.wrong}

    def _whole(self, log: Path) -> float:
        done = forks.run(self.run, log)
        if done.fine:
            self.whole += 1
            self._checked(self.ended, "a whole run")
        else:
            self.wrong.append(f"a run behind {self.killed} kills: {done.in_a_line}")
        return done.seconds

    def _checked(self, check: Callable[[], None], behind: str) -> None:
        try:
            check()
        except Exception as error:
            self.wrong.append(f"behind {behind}: {type(error).__name__}: {forks.last_words(str(error))}")


def kills(bundle: Path, count: int, seed: int, what: Sequence[str] = KILLED) -> dict[str, Any]:
    """Kill `count` each of builds, calibrations, tunings and servers; returns figures and findings as JSON."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # threads must not be forked
        rows = pool.apply(_made, (count, seed, [name for name in MADE if name in what]))
    if "serve" in what:
        rows.append(_servers(bundle, count, seed))
    wrong = [f"{row['what']}: {line}" for row in rows for line in row.pop("wrong")]
    return {"passed": not wrong, "rows": rows, "wrong": wrong, "options": {"kills": count, "seed": seed}}


def _made(count: int, seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    from .trials import trials

    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        found = trials(Path(folder))
        return [found[name].go(name, count, Path(folder) / "log", random.Random(f"{seed}-{name}")) for name in names]


def _servers(bundle: Path, count: int, seed: int) -> dict[str, Any]:
    """Servers that share one cache of costs, killed between their start and the middle of a stream."""
    chance, wrong, killed, whole = random.Random(f"{seed}-serve"), list[str](), 0, 0
    body = json.dumps({"prompt": "def main():", "max_tokens": 8, "temperature": 0}).encode()
    long = json.dumps({"prompt": "def main():", "max_tokens": 400, "temperature": 0, "stream": True}).encode()
    expected, ready = None, 2.0
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        log, cache = Path(folder) / "log", Path(folder) / "cache"
        while killed < count and not wrong:
            start = time.monotonic()
            early = killed % 2 == 1  # before it is ready; else in the middle of a stream
            try:
                server = _started(bundle, log, cache, chance.uniform(0, ready) if early else None)
                if server is None:
                    killed += 1
                    continue
                ready = time.monotonic() - start
                told = ask(server.port, "POST", COMPLETIONS, body).told
                expected = expected or told
                if told is None or told != expected:
                    wrong.append(f"behind {killed} kills it says {told}, before {expected}")
                whole += 1
                asking = threading.Thread(target=_stream, args=(server.port, long))
                asking.start()
                time.sleep(chance.uniform(0, 0.5))
                server.end(signal.SIGKILL)
                asking.join()
                killed += 1
            except (OSError, RuntimeError) as error:
                wrong.append(f"behind {killed} kills: {error}")
        if "Traceback" in log.read_text(errors="replace", encoding="utf-8"):
            wrong.append("the log has a traceback")
        shutil.rmtree(cache, ignore_errors=True)
    told = f"{whole} starts behind kills answered the same, {len(wrong)} faults"
    return {"what": "serve", "times": killed, "found": told, "wrong": wrong}


def _started(bundle: Path, log: Path, cache: Path, kill_after: float | None) -> Any:
    """A server that is ready, or None if it was killed before."""
    if kill_after is None:
        return Server(bundle, log, cache, "--threads", "1")
    command = [sys.executable, "-m", "specexport", "serve", str(bundle), "--port", "0", "--threads", "1"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | {"XDG_CACHE_HOME": str(cache)}
        )
    time.sleep(kill_after)
    process.kill()
    process.wait()
    return None


def _stream(port: int, body: bytes) -> None:
    with contextlib.suppress(OSError):
        leave(port, COMPLETIONS, body, 1 << 20, reset=False)
