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
from gpucheck import environment as environment_module
from gpucheck.apart import EndedError
from gpucheck.finding import Finding
from gpucheck.measurements import Measurements
from gpucheck.measurements.speed import Speed
from gpucheck.plan import Plan
from gpucheck.presets import FULL, QUICK
from gpucheck.report import Report, render
from gpucheck.shapes import SHAPES
from gpucheck.thresholds import judge
from specexport.engines.base import Availability
from support.fake_device import FakeDevice
from support.gpu_measurements import GPU, READS, RIGHT, WRONG, here, outcome, passes, report, round_time, steady

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


def test_the_json_holds_what_was_found(tmp_path: Path) -> None:
    found = Measurements(
        passes((1, 512, 1.0)), [], [round_time(gpu=1.2, wall=1.25, parts=1.0)], [Speed(0, steady(50.0), 1.0, 1.0, 0.01)]
    )
    measured = outcome(RIGHT, measurements=found, measures=judge(found, READS, True), clocks={"pstate": "P0"})
    path = report(measured, outcome(WRONG)).write(tmp_path / "new")
    assert path.name.startswith("nvidia-h200-sxm-tensorrt-20")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    row = json.loads(path.read_text())
    assert (row["format"], row["engine"], row["passed"], row["copy_bytes_per_second"]["median"]) == (
        1,
        "tensorrt",
        False,
        4e12,
    )
    first, second = row["outcomes"]
    assert (first["passed"], second["passed"], second["measurements"]) == (True, False, None)
    assert first["findings"] == [{"name": "parity", "passed": True, "detail": "1e-5 off"}]
    assert first["measurements"]["passes"][0]["ms"] == {"median": 1.0, "low": 1.0, "high": 1.0, "repetitions": 50}
    (timed,) = first["measurements"]["rounds"]
    assert (timed["over_parts"], timed["host"], timed["counts"]["launches"]) == (1.2, pytest.approx(0.05), 1)
    met = {entry["name"]: (entry["met"], entry["limit"], entry["measured"]) for entry in first["measures"]}
    assert met["host launches a round"] == (True, 1, 1)
    assert met["round over the sum of its passes"] == (False, 1.05, 1.2)


def test_the_table_says_what_was_not_proved_or_met() -> None:
    found = Measurements(passes((1, 512, 1.0)), [], [round_time(gpu=1.2)], [])
    text = render(
        report(outcome(RIGHT, WRONG), outcome(RIGHT, measurements=found, measures=judge(found, READS, False)))
    )
    assert "proved   parity: 1e-5 off" in text
    assert "FAILED   ladder: 0.3 off" in text
    assert (
        "NOT MET  round over the sum of its passes: 1.2 x at the worst (greedy, k 0, span 512), asked <= 1.05 x" in text
    )
    assert "met      host launches a round: 1 at the worst" in text
    without = Measurements(passes((1, 512, 1.0)), [], [], [])
    assert "this engine runs no rounds on the device" in render(report(outcome(RIGHT, measurements=without)))


def test_the_environment_does_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment_module.clocks() == {}
    facts = environment_module.environment(GPU)
    assert facts["specexport"]["commit"] == ""
    assert facts["gpu"] == {
        "name": GPU.name,
        "compute_capability": "9.0",
        "memory_bytes": GPU.memory,
        "driver_serves_cuda": "13.0",
    }
    assert "numpy" in facts["packages"]
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '580.1, P0, 1980 MHz, 1980 MHz, 3201 MHz, 3201 MHz, 90.1 W, 700.00 W, 40'\n")
    fake.chmod(0o755)
    assert environment_module.clocks() == dict(
        zip(
            environment_module.CLOCKS,
            ["580.1", "P0", *["1980 MHz"] * 2, *["3201 MHz"] * 2, "90.1 W", "700.00 W", "40"],
            strict=True,
        )
    )


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "tiny,huge"], "'huge' is none of tiny, hybrid, small, demo, 1b, 8b"),
        (["--precision", "fp4"], "'fp4' is none of fp32, fp16, bf16, int8, int4, fp8"),
        (["--engine", "onnxruntime"], "'onnxruntime' is not one of"),
    ],
)
def test_mistakes_of_usage(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(command_module.main, arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_package_that_is_missing_is_named() -> None:
    bare = [sys.executable, "-S", str(ROOT / "scripts/gpu_check.py")]  # without site-packages
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: the package click is not installed; from the checkout: pip install -e '.[export,tensorrt]'"
    ]


def test_the_names_of_the_command_are_those_of_the_shapes() -> None:
    assert list(SHAPES) == list(command_module.SHAPE_NAMES)
    assert "onnxruntime" not in command_module.GPU_ENGINES
    assert {"tensorrt", "tensorrt-rtx"} <= set(command_module.GPU_ENGINES)


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


def test_the_host_and_its_engines_are_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Host(monkeypatch, tmp_path, {}).run()
    lines = [line.split(" s  ", 1) for line in result.stderr.splitlines()]
    assert all(float(seconds) >= 0 for seconds, _ in lines)
    first, *engines, copies = [line for _, line in lines][:5]
    assert first == "NVIDIA H200 (SXM), compute capability 9.0, 140.0 GiB, driver for CUDA 13.0"
    assert engines == [f"usable {name}: {name} 1.0" for name in command_module.GPU_ENGINES]
    assert copies.startswith("copies ")


def test_an_engine_that_crashes_when_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, tmp_path, {})

    def crash(work: Any, *arguments: Any, **rest: Any) -> Any:
        if arguments == ("tensorrt",):
            raise EndedError("the process was ended by SIGSEGV")
        return here(work, *arguments, **rest)

    monkeypatch.setattr(command_module, "apart", crash)
    result = host.run()
    assert result.exit_code == 0
    assert (
        "left out tensorrt: looking at it, the process was ended by SIGSEGV; see what it wrote above" in result.stderr
    )


def test_a_checkout_without_the_demo_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucheck.shapes.EXAMPLES", tmp_path / "none")
    host = Host(monkeypatch, tmp_path, {})
    host.run("--quick")
    assert host.plans[0].shapes == ["tiny", "small"]
    result = host.run("--shape", "demo")
    assert result.exit_code == 1
    assert "this checkout has no examples/demo_pair; take --shape small" in result.stderr


def test_preparing_needs_a_folder_and_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(check_module, "prepare", lambda *given: asked.append(given[:2]))
    result = CliRunner().invoke(command_module.main, ["--prepare"])
    assert (result.exit_code, "name it by --work" in result.output) == (1, True)
    result = CliRunner().invoke(command_module.main, ["--prepare", "--work", str(tmp_path), "--shape", "1b"])
    assert result.exit_code == 0, result.output
    assert asked == [(Plan(["1b"], ["fp16"], FULL, math.inf, tmp_path), ("onnxruntime-cuda",))]


def test_the_first_line_does_not_wait_for_torch() -> None:
    code = "import gpucheck.command, gpucheck.check, gpucheck.report, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", check=True)


def test_a_checkout_need_not_be_installed(tmp_path: Path) -> None:
    """Its root is the package, whatever the folder's name is."""
    checkout = tmp_path / "any name"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("__init__.py", "version.py", "errors.py"):
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    (checkout / "scripts/gpucheck").mkdir()
    (checkout / "scripts/gpucheck/__init__.py").touch()
    code = "def main(prog_name):\n    import specexport.errors\n    print(specexport.errors.__file__)\n"
    (checkout / "scripts/gpucheck/command.py").write_text(code)
    (checkout / "scripts/gpu_check.py").write_bytes((ROOT / "scripts/gpu_check.py").read_bytes())
    block = (
        "import sys; sys.path = [entry for entry in sys.path if 'site-packages' not in entry and '.link' not in entry]"
    )
    run = f"{block}; import runpy; sys.path.insert(0, {str(checkout / 'scripts')!r}); "
    run += f"runpy.run_path({str(checkout / 'scripts/gpu_check.py')!r}, run_name='__main__')"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", run], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.stdout.strip() == str(checkout / "errors.py"), done.stderr


def test_a_proof_that_fails_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Host(monkeypatch, tmp_path, {"tensorrt-rtx": [RIGHT, WRONG]}).run()
    assert result.exit_code == 1
    assert "FAILED   ladder: 0.3 off" in result.stdout


def test_an_engine_that_cannot_run_here_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, tmp_path, {})
    host.usable["tensorrt-rtx"] = Availability(False, "not installed", "install it")
    result = host.run()
    assert result.exit_code == 0
    assert "left out tensorrt-rtx: not installed; install it" in result.stderr
    assert host.run("--engine", "tensorrt-rtx", "--engine", "tensorrt").exit_code == 1  # it was asked for
    host.usable = dict.fromkeys(host.usable, Availability(False, "not installed", "install it"))
    result = host.run()
    assert result.exit_code == 1
    assert "tensorrt: not installed; install it. tensorrt-rtx: not installed" in result.output


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    host = Host(monkeypatch, tmp_path / "file/below", {})
    result = host.run()
    assert result.exit_code == 1
    assert "Not a directory" in result.output
