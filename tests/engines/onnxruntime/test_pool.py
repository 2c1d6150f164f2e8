"""What loading a bundle does to the threads of the process it is loaded in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest
from specexport.engines.onnxruntime.pool import VARIABLE, configure
from specexport.errors import ParameterError

# ONNX Runtime's thread pools belong to the process, so what a host finds must be tried in one of its own.
HOST = """
import sys
import onnxruntime as ort
import specexport

path, graph = sys.argv[1:]

def own_session():
    return ort.InferenceSession(graph, providers=["CPUExecutionProvider"])

before = own_session()
with specexport.load(path, threads=1) as one, specexport.load(path, threads=2) as two:
    texts = [session.generate([1, 2, 3], max_new_tokens=8).tokens for session in (one, two, one)]
assert texts[0] == texts[1] == texts[2], texts
assert len(texts[0]) == 8
assert len(before.get_inputs()) == len(own_session().get_inputs())
print("the host goes on")
"""


def test_a_host_keeps_its_own_sessions_beside_two_bundles_with_different_threads(built: Path) -> None:
    graph = next((built / "graphs" / "rules").glob("*.onnx"))
    command = [sys.executable, "-c", HOST, str(built), str(graph)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "the host goes on\n", done.stderr


def test_workers_stop_spinning_when_a_run_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    options = ort.SessionOptions()
    configure(options, 3, ort)
    assert options.use_per_session_threads
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_an_unknown_pool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    with pytest.raises(ParameterError, match="global, session, stop, quiet"):
        configure(ort.SessionOptions(), 0, ort)
