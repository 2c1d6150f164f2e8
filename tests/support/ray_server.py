"""Ray Serve on this machine, in processes of its own: a cluster of one host, and what tests ask of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.serving import PATIENCE, Client

PROGRAM = Path(__file__).with_name("ray_cluster.py")
OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_EXPORT_COUNTER_AS_GAUGE": "0",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class RayServer(Client):
    """One application of `args` on free ports of loopback."""

    def __init__(self, log: Path, cpus: int = 2, **args: Any) -> None:
        self.log, self.metrics_port = log, free_port()
        self._folder = tempfile.mkdtemp(prefix="ray")  # short: Ray's sockets lie below it
        port = free_port()
        options = {"args": args, "port": port, "metrics": self.metrics_port, "folder": self._folder, "cpus": cpus}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | OWN,
            )
        super().__init__(port)
        assert self._line() == {"ready": True}, log.read_text()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # Ray prints what it likes
                return json.loads(line)
        raise AssertionError(self.log.read_text())

    def replicas(self) -> dict[str, int]:
        """The processes of those that run, by the name that answers have in `x-specexport-replica`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, int] = self._line()
        return found

    def served_by(self, session: str) -> str:
        return self.ask("GET", "/health", headers={"x-session-id": session})[1]["x-specexport-replica"]

    def sessions(self, replicas: int) -> list[str]:
        """One of each replica's own."""
        found: dict[str, str] = {}
        for number in range(1000):
            found.setdefault(self.served_by(f"session-{number}"), f"session-{number}")
            if len(found) == replicas:
                return list(found.values())
        raise AssertionError(found)

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(2 * PATIENCE)
        self.process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code
