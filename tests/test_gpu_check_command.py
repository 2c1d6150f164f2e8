"""`scripts/gpu_check` without a GPU: what it writes and prints, and how it ends."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gpucheck import check as check_module
from gpucheck import command as command_module
from gpucheck.finding import Finding
from gpucheck.plan import Plan
from gpucheck.presets import FULL, QUICK
from gpucheck.report import Report, render
from specexport.engines.base import Availability
from support.fake_device import FakeDevice
from support.gpu_measurements import GPU, RIGHT, WRONG, here, outcome, report

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


# Reports.


def test_passed_is_everything_proved() -> None:
    assert report(outcome(RIGHT)).passed
    assert not report().passed
    assert not report(outcome(RIGHT), outcome(RIGHT, WRONG)).passed
    assert not report(outcome()).passed
    cut_off = outcome(RIGHT)
    cut_off.finished = False
    assert not report(cut_off).passed
    assert "the run was cut off" in render(report(cut_off))


# The command.


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/gpu_check"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=120
    )


def test_without_a_gpu_it_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    done = run_command("--output", str(tmp_path / "found"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert not (tmp_path / "found").exists()


class Host:
    """A host with a GPU, on which the check of a case ends with the findings that are given for its engine."""

    def __init__(self, patch: pytest.MonkeyPatch, output: Path, findings: dict[str, list[Finding]]) -> None:
        self.output, self.plans = output, list[Plan]()
        self.usable = {name: Availability(True, f"{name} 1.0") for name in command_module.GPU_ENGINES}

        def checked(plan: Plan, reports: dict[str, Report], folder: Path, tell: Any) -> None:
            self.plans.append(plan)
            for name, entry in reports.items():
                entry.outcomes.append(outcome(*findings.get(name, [RIGHT])))
                entry.write(folder)

        class Module:
            def __init__(self, found: Availability) -> None:
                self.availability = lambda: found

        patch.setattr(command_module, "apart", here)
        patch.setattr(command_module, "find_gpu", lambda: GPU)
        patch.setattr(command_module, "engine_module", lambda name: Module(self.usable[name]))
        patch.setattr("specexport.engines.cuda.device.CudaDevice", lambda: FakeDevice(memory=1 << 20))
        patch.setattr(check_module, "check", checked)

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(command_module.main, ["--output", str(self.output), *arguments])


def test_everything_proved_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, tmp_path, {})
    result = host.run()
    assert result.exit_code == 0, result.output
    assert {json.loads(path.read_text())["engine"] for path in tmp_path.glob("*.json")} == set(
        command_module.GPU_ENGINES
    )
    assert "proved   parity: 1e-5 off" in result.stdout
    assert host.plans[0] == Plan(["tiny", "demo", "8b"], ["fp16"], FULL, math.inf)
    host.run("--quick", "--shape", "8b,tiny", "--precision", "bf16,fp16", "--engine", "tensorrt")
    assert host.plans[1] == Plan(["8b", "tiny"], ["bf16", "fp16"], QUICK, 240.0)
    host.run("--quick", "--minutes", "9.5", "--work", str(tmp_path / "work"))
    assert host.plans[2] == Plan(["tiny", "demo"], ["fp16"], QUICK, 570.0, tmp_path / "work")


def test_the_first_line_does_not_wait_for_torch() -> None:
    code = "import gpucheck.command, gpucheck.check, gpucheck.report, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", check=True)
