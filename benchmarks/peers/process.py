"""The driver's side of a runner: a process that gets one request at a time and is suspended in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import deque
from pathlib import Path
from typing import Any


class RunnerError(Exception):
    """A runner failed: one line that names it."""


class RunnerProcess:
    """Runs `command`, which implements protocol.py; its stderr goes to the file `log`. hello: its first line."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        try:
            self.hello = self._read()
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        """Suspend or resume the process: between requests, threads that spin while they wait would slow the others."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            with self.log.open(encoding="utf-8", errors="replace") as lines:
                said = " ".join(deque((line.strip() for line in lines if line.strip()), maxlen=1))
            raise RunnerError(f"{self.name} ended with exit code {code}: {said or 'it said nothing'} (log: {self.log})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunnerError(f"{self.name}: {answer['error']} (log: {self.log})")
        return answer

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request; returns the answer. Raises `RunnerError`."""
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; reading its output says how
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # this ends a suspended process too
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
