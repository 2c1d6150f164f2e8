"""`scripts/gpu_check` without a GPU: what it writes and prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from gpucheck import check as check_module
from gpucheck import command as command_module
from gpucheck import environment as environment_module
from gpucheck.check import Plan, check
from gpucheck.finding import Finding
from gpucheck.measurements import Measurements
from gpucheck.measurements.speed import Speed
from gpucheck.presets import QUICK
from gpucheck.report import Outcome, Report, render
from gpucheck.shapes import SHAPES
from gpucheck.thresholds import judge
from specexport.engines.base import Availability
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.gpu_measurements import GPU, READS, passes, round_time, steady

ROOT = Path(__file__).parents[1]


# Reports.


def outcome(*findings: Finding, **changes: Any) -> Outcome:
    return Outcome("tiny", "fp16", findings=list(findings), finished=True, **changes)


def report(*outcomes: Outcome) -> Report:
    facts = {"gpu": {"name": GPU.name, "memory_bytes": GPU.memory}, "specexport": {"version": "0.1", "commit": "abc"}}
    return Report("tensorrt", "TensorRT 10.16", "scripts/gpu_check", facts, steady(4e12), outcomes=list(outcomes))


RIGHT, WRONG = Finding("parity", True, "1e-5 off"), Finding("ladder", False, "0.3 off")


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


# One engine after the other.


def test_an_engine_that_fails_is_told_of_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def build(target: str, draft: str, root: Path, options: Any, progress: Any) -> Any:
        assert Path(target, "config.json").is_file()
        assert (options.precision, options.max_draft_tokens, options.max_seq_len) == ("fp16", 4, 2048)
        if options.engines == ("tensorrt",):
            raise EngineError("no kernel for this card; choose another")
        if options.engines == ("tensorrt-rtx",):
            raise ValueError("a mistake\nof ours")
        with progress.stage("write", 1):
            progress.note("no plans were made here: the card is too old")
        return SimpleNamespace(times=(), bundle=SimpleNamespace(manifest=SimpleNamespace(plans=())))

    monkeypatch.setattr(check_module, "build", build)
    lines: list[str] = []
    monkeypatch.setattr(check_module, "LIBRARIES", {"without plans": ""})
    reports = {
        name: replace(report(), engine=name, outcomes=[]) for name in ("tensorrt", "tensorrt-rtx", "without plans")
    }
    check(Plan(["tiny"], ["fp16"], QUICK), reports, tmp_path, lines.append)
    errors = {name: entry.outcomes[0].error for name, entry in reports.items()}
    assert errors == {
        "tensorrt": "no kernel for this card; choose another",
        "tensorrt-rtx": "ValueError: a mistake",
        "without plans": "no plans were made here: the card is too old",
    }
    assert [json.loads(path.read_text())["outcomes"][0]["error"] for path in sorted(tmp_path.iterdir())] == list(
        errors.values()
    )
    assert "Traceback" in capfd.readouterr().err  # of the second one, which nobody foresaw
    assert "  no kernel for this card; choose another" in lines


def test_what_was_found_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a borrowed machine may be cut off at any time."""
    reports = {"tensorrt": report()}

    def examine(*arguments: Any) -> None:
        *_, found, tell = arguments
        found.findings.append(RIGHT)
        tell("proved")
        (row,) = json.loads(next(tmp_path.glob("*.json")).read_text())["outcomes"]
        assert row["findings"] == [{"name": "parity", "passed": True, "detail": "1e-5 off"}]
        assert not row["passed"]
        raise KeyboardInterrupt

    class Opened:
        times = ()
        bundle = SimpleNamespace(manifest=SimpleNamespace(plans=[SimpleNamespace(engine="tensorrt")]))

        def __init__(self, *_: Any) -> None:
            self.session = self

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(check_module, "build", Opened)
    monkeypatch.setattr(check_module, "open_subject", Opened)
    monkeypatch.setattr(check_module, "examine", examine)
    with pytest.raises(KeyboardInterrupt):
        check(Plan(["tiny"], ["fp16"], QUICK), reports, tmp_path, lambda line: None)


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
        (["--shape", "tiny,huge"], "'huge' is none of tiny, demo, 1b, 8b"),
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
    assert host.plans[0].shapes == ["tiny", "demo", "8b"]
    assert host.plans[0].precisions == ["fp16"]
    host.run("--quick", "--shape", "8b,tiny", "--precision", "bf16,fp16", "--engine", "tensorrt")
    assert host.plans[1] == Plan(["8b", "tiny"], ["bf16", "fp16"], QUICK)


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
