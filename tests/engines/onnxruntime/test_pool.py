"""What loading a bundle does to the threads of the process it is loaded in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from specexport.engines import cpus
from specexport.engines.cpus import cpu_limit
from specexport.engines.onnxruntime import session_options
from specexport.engines.onnxruntime.session_options import check_threads, configure
from specexport.errors import ParameterError
from support.refusals import refused

# ONNX Runtime's thread pools belong to the process, so what a host finds must be tried in one of its own.
HOST = """
import sys
import onnx
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

OWN = """<ir_version: 8, opset_import: ["": 18]>
own (float[64] x) => (float[64] y) { y = Neg (x) }"""


def test_a_host_keeps_its_own_sessions_beside_two_bundles_with_different_threads(
    compilable: Path, tmp_path: Path
) -> None:
    graph = tmp_path / "own.onnx"
    graph.write_bytes(onnx.parser.parse_model(OWN).SerializeToString())
    command = [sys.executable, "-c", HOST, str(compilable), str(graph)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "the host goes on\n", done.stderr


@pytest.mark.parametrize("threads", [-1, 17])
def test_threads_that_would_only_wait_for_each_other(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 5})
    check_threads(16)
    with refused(ParameterError, "0", field="threads"):
        check_threads(threads)


def test_workers_stop_spinning_when_a_run_returns() -> None:
    options = ort.SessionOptions()
    configure(options, 3)
    assert options.use_per_session_threads
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("", {"cpu.max": "150000 100000"}, None),
        ("0::/a.slice/b", {"a.slice/cpu.max": "300000 100000", "a.slice/b/cpu.max": "max 100000"}, 3.0),
        ("0::/a.slice/b", {"a.slice/cpu.max": "300000 100000", "a.slice/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/outside/b", {"cpu.max": "200000 100000"}, 2.0),
        ("5:memory:/\n2:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "25000"}, 2.0),
        ("2:cpu:/b", {"cpu/b/cpu.cfs_quota_us": "-1", "cpu/b/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_pool_is_no_larger_than_a_containers_limit(
    own: str, files: dict[str, str], limit: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {"own": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    monkeypatch.setattr(cpus, "GROUPS", tmp_path)
    monkeypatch.setattr(cpus, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(session_options, "physical_cores", lambda: 4)
    assert cpu_limit() == (float("inf") if limit is None else limit)
    options = ort.SessionOptions()
    for threads, expected in ((0, {None: 4, 3.0: 3, 2.0: 2}.get(limit, 1)), (6, 6)):
        configure(options, threads)
        assert options.intra_op_num_threads == expected
