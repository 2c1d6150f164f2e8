"""A real `tritonserver`, of the package nvidia-pytriton, in a process of its own without GPU and container.

The package lies in an environment of its own, `make triton`, since it keeps numpy below 2; or in the one whose Python
$SPECEXPORT_TRITON_PYTHON names. That environment also has what a bundle runs on.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 120.0
ASKED = """
import json, sys, sysconfig
import onnxruntime, pytriton, tokenizers
folders = {"packages": sysconfig.get_path("platlib"), "library": sysconfig.get_config_var("LIBDIR")}
print(json.dumps({**folders, "version": f"{sys.version_info.major}.{sys.version_info.minor}"}))
"""


@cache
def environment() -> dict[str, str] | str:
    """Where the packages are, or why they are not."""
    python = Path(os.environ.get("SPECEXPORT_TRITON_PYTHON") or ROOT / ".venv/triton/bin/python")
    if not python.exists():
        return "needs nvidia-pytriton in an environment of its own: make triton"
    done = subprocess.run([python, "-c", ASKED], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else f"{python}: {done.stderr.splitlines()[-1]}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def python_path(folder: Path) -> list[Path]:
    """What the backend's interpreter needs to import: packages, and this checkout by its name."""
    (folder / "link").mkdir(exist_ok=True)
    link = folder / "link/specexport"
    if not link.exists():
        link.symlink_to(ROOT)
    found = environment()
    assert isinstance(found, dict)
    return [Path(found["packages"]), folder / "link"]


class TritonServer:
    """workplace: for the log and for the backends, which need their stub beside them."""

    def __init__(self, repository: Path, workplace: Path) -> None:
        found = environment()
        assert isinstance(found, dict)
        packages = Path(found["packages"])
        server = packages / "pytriton/tritonserver"
        backends = workplace / "backends/python"
        backends.mkdir(parents=True)
        stub = server / "python_backend_stubs" / found["version"] / "triton_python_backend_stub"
        for file in [*(server / "backends/python").glob("*.*"), stub]:
            (backends / file.name).symlink_to(file)
        self.port, self.metrics_port, self.log = free_port(), free_port(), workplace / "log"
        options = {
            "model-repository": repository,
            "backend-directory": backends.parent,
            "http-address": "127.0.0.1",
            "http-port": self.port,
            "metrics-address": "127.0.0.1",
            "metrics-port": self.metrics_port,
            "allow-grpc": "false",
        }
        command = [server / "bin/tritonserver", *(f"--{name}={value}" for name, value in options.items())]
        command.append("--disable-auto-complete-config")  # each would be a start of the interpreter more
        libraries = f"{packages / 'nvidia_pytriton.libs'}:{found['library']}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | {"LD_LIBRARY_PATH": libraries}
            )

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
