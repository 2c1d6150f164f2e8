"""`examples/scale_out/ray_app.py` under a real Ray, where that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.serving import Client

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/scale_out"
PROGRAM = """
import socket, sys
import ray, ray_app
from ray import serve
with socket.create_server(("127.0.0.1", 0)) as found:
    port = found.getsockname()[1]
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(ray_app.build({"bundle": sys.argv[1], "replicas": "2"}))
print(f"PORT {port}", flush=True)
sys.stdin.read()
serve.shutdown()
"""


@pytest.mark.slow
def test_sessions_stay_on_their_replica(served_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'ray[serve]'")
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}
    command = [sys.executable, "-c", PROGRAM, str(served_bundle)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        (tmp_path / "log").open("wb") as errors,
        subprocess.Popen(command, cwd=EXAMPLES, env=environment, stderr=errors, **pipes) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        lines = (line.split() for line in process.stdout)
        port = next((int(words[1]) for words in lines if words and words[0] == "PORT"), None)
        assert port is not None, (tmp_path / "log").read_text()
        client, replicas = Client(port), {}
        for number in range(20):
            session = {"x-session-id": f"session-{number % 10}"}
            status, headers, body = client.ask(
                "POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3, "temperature": 0}, headers=session
            )
            assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 3)
            replica = headers["x-specexport-replica"]
            assert replicas.setdefault(session["x-session-id"], replica) == replica
        assert len(set(replicas.values())) == 2
        process.stdin.close()
        assert process.wait(60) == 0
