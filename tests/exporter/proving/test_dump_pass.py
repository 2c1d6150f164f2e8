"""Passes of a proof for polygraphy: the graph alone, fed what is dumped, gives the reference's logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from specexport.bundle import Bundle
from specexport.cli import main
from specexport.errors import ParameterError
from specexport.exporter.proving.dump_pass import DumpedPass, dump_pass, write_pass
from support.refusals import refused

pytest.importorskip("polygraphy")


POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main(sys.argv[1:]))"


def answer(dumped: DumpedPass) -> np.ndarray:
    session = ort.InferenceSession(dumped.graph, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], dict(dumped.inputs))[0])


@pytest.mark.parametrize("model", ["target", "draft"])
@pytest.mark.parametrize("dialect", ["ort", "onnx"])
def test_every_pass_gives_the_reference_s_logits(compilable: Path, model: str, dialect: str) -> None:
    """In any order: each is dumped by itself, rejected and poisoned rows included."""
    bundle = Bundle.open(compilable, check_digests=False)
    last = dump_pass(bundle, model, dialect)
    compared = 0
    for step in range(0, last.steps, 3):
        dumped = dump_pass(bundle, model, dialect, step)
        assert dumped.step == step
        if dumped.logits is not None:
            assert dumped.tolerance is not None
            np.testing.assert_allclose(answer(dumped), dumped.logits, rtol=0, atol=dumped.tolerance)
            compared += 1
    assert compared >= 3
    assert last.step == last.steps - 1


def test_what_the_bundle_lacks_is_refused(built: Path) -> None:
    bundle = Bundle.open(built, check_digests=False)
    for wrong in ({"model": "other"}, {"dialect": "rows"}, {"step": 1000}, {"step": -1}):
        with refused(ParameterError, "target", field=("dialect", "model", "step")):
            dump_pass(bundle, **wrong)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_polygraphy_runs_what_the_command_prints(compilable: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    done = CliRunner().invoke(main, ["dump", str(compilable), "-o", str(folder), "--dialect", "onnx"])
    assert (done.exit_code, done.stdout.strip()) == (0, str(folder))
    assert "polygraphy run" in done.stderr
    dumped = dump_pass(Bundle.open(compilable), dialect="onnx")
    write_pass(dumped, folder)
    loads = ["--load-inputs", str(folder / "inputs.json"), "--load-outputs", str(folder / "outputs.json")]
    command = [sys.executable, "-W", "ignore", "-c", POLYGRAPHY, "run", str(dumped.graph), "--onnxrt", *loads]
    found = subprocess.run([*command, "--atol", "logits:1e-3"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-500:] + found.stderr[-500:]
    assert "All outputs matched" in found.stdout
    assert subprocess.run([*command, "--atol", "0", "--rtol", "0"], capture_output=True, check=False).returncode == 1
