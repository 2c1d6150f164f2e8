"""The example of docs/embedding.md that is mounted in another app, under uvicorn's own command, stopped mid-stream."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import PATIENCE, STARTED, wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs/embedding.md"
DRAIN = "queue.drain(30)"
# So that the stream lasts longer than stopping takes.
SLOWLY = """
import time
from specexport.serve.engine.job import Job
note = Job.note
Job.note = lambda job, chunk: (time.sleep(0.02), note(job, chunk))[1]
"""


def example() -> str:
    """With Starlette in place of FastAPI, which is one with more on top, and which is not among the test's packages."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "FastAPI(" in code]
    assert DRAIN in found
    return found.replace("from fastapi import FastAPI", "from starlette.applications import Starlette as FastAPI")


def stopped_stream(app: str, bundle: Path, folder: Path, *options: str, tokens: int = 1100) -> bytes:
    """What a client reads of a stream during which uvicorn is told to stop."""
    (folder / "example.py").write_text(app.replace("pair.bundle", str(bundle)))
    log = folder / "log"
    command = [sys.executable, "-m", "uvicorn", "example:app", "--port", "0", *options]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, cwd=folder, stderr=errors, stdout=subprocess.PIPE, text=True)
    STARTED.append(process)
    wait_for(lambda: process.poll() is not None or "running on http" in log.read_text())
    port = re.search(r"running on http://127\.0\.0\.1:(\d+)", log.read_text())
    assert port is not None, log.read_text()
    asked = {"prompt": "Hello", "max_tokens": tokens, "stop_token_ids": [], "stream": True, "temperature": 0}
    body = json.dumps({**asked, "specexport": {"speculate": False}}).encode()
    head = "POST /llm/v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(port[1])), timeout=PATIENCE) as stream:
        stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        found = stream.recv(100)
        process.send_signal(signal.SIGTERM)
        while part := stream.recv(100_000):
            found += part
    process.communicate(timeout=PATIENCE)
    return found


@pytest.mark.slow
def test_a_stream_ends_before_the_application_does(served_bundle: Path, tmp_path: Path) -> None:
    """With the drain and without: what the drain is for, the others test."""
    found = stopped_stream(SLOWLY + example(), served_bundle, tmp_path, tokens=60)
    assert b"data: [DONE]" in found
    assert b'"error"' not in found


def test_a_stream_that_is_left_ends_with_an_error(served_bundle: Path, tmp_path: Path) -> None:
    found = stopped_stream(SLOWLY + example().replace(DRAIN, "queue.drain(0)"), served_bundle, tmp_path)
    assert b'"code":"shutting_down"' in found
    assert b"[DONE]" not in found
