"""`specexport serve` in its own process: started, observed from outside, ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0  # seconds to wait for an event


@dataclass(frozen=True)
class Sample:
    """seconds: since the start. rss: bytes. descriptors, threads: how many."""

    seconds: float
    rss: int
    descriptors: int
    threads: int


class Server:
    """A server on a free port of loopback; its stderr goes to `log`, and its cache is in `cache`."""

    def __init__(self, bundle: Path, log: Path, cache: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
        self.log = log
        command = [*prefix, sys.executable, "-m", "specexport", "serve", str(bundle), "--port", "0", *options]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, encoding="utf-8"
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process.stdout.close()
            raise RuntimeError(f"the server did not start: {log.read_text(errors='replace', encoding='utf-8')[-500:]}")
        self.port = int(json.loads(line)["port"])
        self._begun = time.monotonic()

    def sample(self) -> Sample:
        folder = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text(encoding="utf-8").splitlines())
        return Sample(
            time.monotonic() - self._begun,
            int(status["VmRSS"].split()[0]) << 10,
            sum(1 for _ in (folder / "fd").iterdir()),
            int(status["Threads"]),
        )

    def metrics(self) -> dict[str, float]:
        """Metrics by name, summed over labels."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as answer:
            for line in answer.read().decode().splitlines():
                if match := re.match(r"(\w[^\s{]*)(?:\{.*\})? (\S+)$", line):
                    found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        return found

    def wait_until_idle(self) -> None:
        """Raises `TimeoutError` if a request still runs or waits although its client has disconnected."""
        end = time.monotonic() + PATIENCE
        while True:
            found = self.metrics()
            if not found["specexport:num_requests_running"] + found["specexport:num_requests_waiting"]:
                return
            if time.monotonic() > end:
                raise TimeoutError("requests still run although nobody waits for them")
            time.sleep(0.05)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the server with this signal; returns its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
