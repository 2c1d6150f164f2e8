"""A real `tritonserver`, of the package nvidia-pytriton, in a process of its own without GPU and container.

The package lies in an environment of its own, `make triton`, since it keeps numpy below 2; or in the one whose Python
$SPECEXPORT_TRITON_PYTHON names. That environment also has what a bundle runs on.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from start_tritonserver import environment

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 120.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def python_path(folder: Path) -> list[Path]:
    """What the backend's interpreter needs to import: packages, and before them this checkout by its name, since
    another state of it may be installed among them.
    """
    (folder / "link").mkdir(exist_ok=True)
    link = folder / "link/specexport"
    if not link.exists():
        link.symlink_to(ROOT)
    found = environment()
    assert isinstance(found, dict)
    return [folder / "link", Path(found["packages"])]


class TritonServer:
    """staging_dir: for the log."""

    def __init__(self, repository: Path, staging_dir: Path) -> None:
        self.port, self.metrics_port, self.log = free_port(), free_port(), staging_dir / "log"
        options = {
            "model-repository": repository,
            "http-address": "127.0.0.1",
            "http-port": self.port,
            "metrics-address": "127.0.0.1",
            "metrics-port": self.metrics_port,
            "allow-grpc": "false",
        }
        given = (f"--{name}={value}" for name, value in options.items())
        command = [sys.executable, ROOT / "scripts/start_tritonserver.py", *given]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        self._wait(self._ready)

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        try:
            return self.ask("GET", "/v2/health/ready")[0] == 200
        except ConnectionError:
            return False

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.log.read_text(errors="replace")
            time.sleep(0.05)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stream(self, model: str, text: str, **options: Any) -> tuple[int, list[dict[str, Any]]]:
        """The status and the events."""
        status, body = self.ask("POST", f"/v2/models/{model}/generate_stream", asked(text, **options))
        return status, list(events(body))

    def whole(self, model: str, text: str, **options: Any) -> tuple[int, dict[str, Any]]:
        status, body = self.ask("POST", f"/v2/models/{model}/generate", asked(text, **options))
        return status, json.loads(body)

    def leave(self, model: str, text: str, **options: Any) -> None:
        """Ask for a stream, and close the connection behind its first bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(asked(text, **options)))
        answer = connection.getresponse()
        assert answer.read(10)
        answer.close()
        connection.close()

    def counters(self, name: str) -> dict[str, float]:
        """A counter of ours, by instance."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=PATIENCE)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        pattern = rf'^specexport:{name}_total\{{.*instance="(\w+)".*\}} (\S+)$'
        return {instance: float(value) for instance, value in re.findall(pattern, text, re.MULTILINE)}

    def wait_for(self, condition: Callable[[], bool]) -> None:
        self._wait(condition)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()


def asked(text: str, **options: Any) -> dict[str, Any]:
    return {"text_input": text, "options": json.dumps(options)}


def events(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.decode().splitlines():
        if line:
            assert line.startswith("data: "), line
            yield json.loads(line.removeprefix("data: "))
