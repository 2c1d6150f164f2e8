"""Under `python -X dev -W error`, with faulthandler: no warning, no file left open, no error that is swallowed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import ServerProcess, wait_for

DEV = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error", "PYTHONFAULTHANDLER": "1"}
# What Python says of an error in a finalizer, as of a file that was never closed, and of one in a thread.
FAULTS = ("Warning", "Exception ignored", "Traceback", "never awaited", "never retrieved", "Fatal Python error")


def check(told: str) -> None:
    assert [line for line in told.splitlines() if any(fault in line for fault in FAULTS)] == []


def test_faults_are_seen() -> None:
    code = "import gc; open('/dev/null'); gc.collect()"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | DEV, capture_output=True, text=True)
    with pytest.raises(AssertionError):
        check(done.stderr)


def test_generate(built: Path) -> None:
    command = [sys.executable, "-m", "specexport", "generate", str(built), "--prompt", "def", "--max-new-tokens", "8"]
    done = subprocess.run(command, env=os.environ | DEV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 tokens" in done.stderr
    check(done.stderr)


def test_serve(served_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    with ServerProcess(served_bundle, tmp_path / "log", env=DEV) as server:
        server.chat(max_tokens=4)
        assert server.events("/v1/completions", {"prompt": "def", "max_tokens": 4})
        regex = {"prompt": "def", "max_tokens": 8, "structured_outputs": {"regex": "[a-z]{3}"}}
        assert server.ask("POST", "/v1/completions", regex)[0] == 200
        assert server.ask("POST", "/v1/completions", b"{")[0] == 400
        body = json.dumps({"prompt": "def", "max_tokens": 1000, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as leaving:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            leaving.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            assert leaving.recv(100)
        wait_for(server.idle)
        assert server.end() == 0
    check(server.log.read_text())
