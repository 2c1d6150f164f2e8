"""`scripts/gpu_check` without a GPU: its arithmetic, what it writes and prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from fake_device import FakeDevice
from specexport.bundle import Contract
from specexport.engines.base import Availability
from specexport.engines.cuda_driver import Gpu
from specexport.errors import EngineError
from specexport.runtime.parity import contexts
from specexport.runtime.session import Generation
from specexport.runtime.statistics import Statistics

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from gpucheck import check as check_module
from gpucheck import command as command_module
from gpucheck import environment as environment_module
from gpucheck.check import Plan, check
from gpucheck.checkpoints import Llama, write_checkpoint
from gpucheck.effort import QUICK
from gpucheck.finding import Finding
from gpucheck.measurements import Measurements, PassTime
from gpucheck.measurements.bandwidth import COPIES, measure_bandwidth
from gpucheck.measurements.rounds import RoundKey, RoundTime
from gpucheck.measurements.speed import Speed, measure_speed
from gpucheck.measures import Measure, Reads, judge
from gpucheck.meter import Counts, Meter
from gpucheck.proofs.ladder import ladder_steps
from gpucheck.report import Outcome, Report, render
from gpucheck.shapes import SHAPES, bytes_read, default_shapes
from gpucheck.timing import Spread, interleaved

ROOT = Path(__file__).parents[1]
GPU = Gpu("NVIDIA H200 (SXM)", (9, 0), "13.0", 140 * 2**30)
READS = Reads(weights=800_000, cache_row=1000, bandwidth=1e9)
SMALL = Llama(2, 32, 4, 2, 48, 16, tied=False, positions=64)


def steady(ms: float) -> Spread:
    return Spread(ms, ms, ms, 50)


# Timing.


def test_variants_are_measured_in_turn() -> None:
    taken: list[str] = []

    def sample(name: str) -> Callable[[], float]:
        def take() -> float:
            taken.append(name)
            return float(len(taken))

        return take

    found = interleaved({"a": sample("a"), "b": sample("b")}, 3)
    assert taken == ["a", "b"] * 3
    assert (found["a"].median, found["b"].median, found["a"].repetitions) == (3.0, 4.0, 3)


def test_a_spread_is_the_middle_four_fifths() -> None:
    spread = Spread.of([float(value) for value in range(101)])
    assert spread == Spread(50.0, 10.0, 90.0, 101)
    assert Spread.of([1.0, 1.0, 1.0, 900.0]).median == 1.0


# The meter.


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(memory=1 << 20)


def test_the_meter_counts_what_the_host_asks_for(device: FakeDevice) -> None:
    meter = Meter(device)
    first, second = meter.allocate(256, "one"), meter.allocate(256, "another")

    def work() -> None:
        meter.copy(second, first, 256)
        meter.fill(first, 7, 64, 4)

    work()
    meter.synchronize()
    assert meter.counts == Counts(launches=0, waits=1, others=2)
    graph = meter.capture(work)
    assert meter.counts == Counts(launches=0, waits=1, others=2)
    meter.launch(graph)
    meter.synchronize()
    assert meter.counts == Counts(launches=1, waits=2, others=2)
    assert meter.last_graph == graph
    assert device.view(second, 256).view(np.uint32).tolist() == [7] * 64


def test_a_graph_is_timed_by_the_replay(device: FakeDevice) -> None:
    """The fake GPU takes a millisecond for each operation."""
    meter = Meter(device)
    place = meter.allocate(256, "it")

    def work() -> None:
        for _ in range(3):
            meter.fill(place, 7, 64, 4)

    work()
    meter.synchronize()
    before = meter.counts.launches
    assert meter.graph_time(meter.capture(work))() == 3.0
    assert meter.counts.launches == before  # those of the measurement are not the host's


def test_a_short_graph_is_timed_over_many_replays(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 0.5, 0.1, 0.2, 3.0])
    launched: list[int] = []

    def elapsed(work: Callable[[], None]) -> float:
        before = device.log.count("launch")
        work()
        launched.append(device.log.count("launch") - before)
        return next(times)

    monkeypatch.setattr(device, "elapsed", elapsed)
    graph = device.capture(lambda: None)
    assert Meter(device).graph_time(graph)() == 3.0 / 20  # 2 ms at 0.1 ms each
    assert launched == [1, 1, 1, 1, 20]


def test_a_librarys_work_is_captured_without_the_copies_around_it(device: FakeDevice) -> None:
    meter = Meter(device)
    first, second = meter.allocate(256, "one"), meter.allocate(256, "another")

    def run() -> None:
        meter.copy(second, first, 256)
        device.enqueue("execute", lambda: None)
        meter.synchronize()

    run()
    device.log.clear()
    graph = meter.capture_alone(run)
    assert device.log == ["capture", "captured execute", "end of capture"]
    assert meter.graph_time(graph)() == 1.0
    meter.copy(second, first, 256)
    assert device.log[-1] == "copy 256"


def test_the_bandwidth_counts_reads_and_writes(device: FakeDevice) -> None:
    """A millisecond a copy of a quarter of the memory."""
    free, _ = device.memory()
    spread = measure_bandwidth(device, 5)
    assert spread.median == pytest.approx(2 * (free // 4) * 1e3)
    assert spread.repetitions == 5
    assert device.log.count(f"copy {free // 4}") == COPIES * 6


def test_speed_is_told_against_plain_decoding() -> None:
    """Plain decoding takes 20 ms a token; rounds of k take 40 ms and give k tokens."""

    class Stopwatch:
        max_draft_tokens = 4
        asked: ClassVar[list[tuple[int, int]]] = []

        def reset(self) -> None: ...

        def generate(self, prompt: list[int], num_draft_tokens: int, max_new_tokens: int, **_: Any) -> Any:
            self.asked.append((prompt[0], num_draft_tokens))
            rounds = max_new_tokens // max(1, num_draft_tokens)
            statistics = Statistics(emitted=max_new_tokens, prefill_seconds=1.0)
            statistics.total_seconds = 1.0 + rounds * (0.04 if num_draft_tokens else 0.02)
            statistics.device_seconds = statistics.total_seconds - 1.0 - rounds * 0.001
            for _ in range(rounds):
                statistics.add_round(num_draft_tokens, max(0, num_draft_tokens - 1))
            return Generation("", (), "length", statistics)

    session: Any = Stopwatch()
    plain, two, four = measure_speed(session, [[5], [6]], new_tokens=8, repetitions=2)
    assert session.asked[3:] == [(prompt, k) for prompt in (5, 6) for k in (0, 2, 4)] * 2  # behind a first round of each
    assert [speed.k for speed in (plain, two, four)] == [0, 2, 4]
    assert [round(speed.over_plain, 6) for speed in (plain, two, four)] == [1.0, 1.0, 2.0]
    assert (plain.tokens_per_second.median, four.tokens_per_second.median) == (pytest.approx(50.0), pytest.approx(100.0))
    assert (two.mean_acceptance_length, two.host) == (2.0, pytest.approx(1.0))


# What is asked of the measurements.


def round_time(
    k: int = 0, gpu: float = 1.0, wall: float = 1.01, parts: float = 1.0, span: int = 512, rule: str = "greedy", **counts: int
) -> RoundTime:
    calls = Counts(**({"launches": 1, "waits": 1, "others": 0} | counts))
    return RoundTime(rule, k, span, calls, steady(gpu), steady(wall), parts)


def passes(*times: tuple[int, int, float]) -> list[PassTime]:
    return [PassTime("target", width, span, "gpu", steady(ms)) for width, span, ms in times]


def judged(rounds: list[RoundTime], found: list[PassTime] | None = None, asked_speed: bool = False) -> dict[str, Measure]:
    measures = judge(Measurements(found or [], [], rounds, []), READS, asked_speed)
    return {measure.name: measure for measure in measures}


@pytest.mark.parametrize(
    ("name", "within", "beyond", "measured"),
    [
        ("host launches a round", {"launches": 1}, {"launches": 2}, 2),
        ("host waits a round", {"waits": 1}, {"waits": 2}, 2),
        ("other calls of the host a round", {"others": 0}, {"others": 1}, 1),
        ("host time a round", {"wall": 1.0299}, {"wall": 1.0301}, 30.1),
        ("round over the sum of its passes", {"gpu": 1.0499}, {"gpu": 1.0501}, 1.0501),
    ],
)
def test_measures_of_rounds_are_of_the_worst_one(name: str, within: Any, beyond: Any, measured: float) -> None:
    fine = judged([round_time(), round_time(**within)])[name]
    assert fine.met
    worst = judged([round_time(), round_time(k=3, span=1024, rule="block", **beyond), round_time()])[name]
    assert not worst.met
    assert worst.measured == pytest.approx(measured)
    assert worst.where == "block, k 3, span 1024"


def test_the_floor_is_of_plain_decoding_as_the_host_sees_it() -> None:
    """800 kB of weights and 200 rows of 1 kB at 1 GB/s: a millisecond."""
    name = "bandwidth floor over plain decoding"
    others = [round_time(k=1, wall=9.0, span=200)]
    assert READS.floor(200) == pytest.approx(1.0)
    assert judged([*others, round_time(gpu=0.1, wall=1 / 0.851, span=200)], asked_speed=True)[name].met
    fast = [round_time(wall=0.9, span=100), round_time(wall=0.1, span=200, rule="block")]
    slow = judged([*others, round_time(wall=1 / 0.849, span=200), *fast], asked_speed=True)[name]
    assert not slow.met
    assert (slow.measured, slow.where) == (pytest.approx(0.849), "span 200")


def test_widths_are_compared_within_a_span_and_up_to_eight() -> None:
    name = "width 2 to 8 over width 1"
    fine = passes((1, 512, 1.0), (2, 512, 1.14), (8, 512, 1.15), (9, 512, 5.0), (64, 512, 5.0), (1, 1024, 2.0), (8, 1024, 2.3))
    assert judged([], fine, asked_speed=True)[name].met
    slow = judged([], [*fine, *passes((3, 1024, 2.31))], asked_speed=True)[name]
    assert not slow.met
    assert (slow.measured, slow.where) == (pytest.approx(1.155), "width 3, span 1024")
    draft = PassTime("draft", 2, 512, "gpu", steady(9.0))
    assert judged([], [*fine, draft], asked_speed=True)[name].met


def test_single_passes_are_asked_of_some_shapes_only() -> None:
    assert set(judged([round_time(wall=99.0)], passes((1, 512, 1.0), (2, 512, 9.0)))) == set(judged([round_time()]))
    assert judged([], passes((1, 512, 1.0))) == {}
    assert [shape.name for shape in SHAPES.values() if shape.asked_speed] == ["8b"]


def test_a_round_is_the_sum_of_its_passes() -> None:
    target = {(width, 512): 100.0 * width for width in (1, 2, 3, 4)}
    draft = {(1, 512): 1.0, (2, 512): 2.0}
    rules: Any = {("select_greedy", 0): 0.1, ("accept_greedy", 3): 0.01, ("select", 0): 0.2, ("accept_block", 1): 0.05}
    assert RoundKey("greedy", 0, 512).parts(target, draft, rules) == pytest.approx(100.1)
    assert RoundKey("greedy", 3, 512).parts(target, draft, rules) == pytest.approx(400 + 2 + 1 + 1 + 0.3 + 0.01)
    assert RoundKey("block", 1, 512).parts(target, draft, rules) == pytest.approx(200 + 2 + 0.2 + 0.05)


# The steps of the ladder's proof.


@pytest.mark.parametrize("contract", [Contract(2048, 4, 64, "fp16"), Contract(1024, 7, 64, "fp16"), Contract(300, 4, 16, "fp32")])
def test_the_ladder_is_walked_on_both_sides_of_every_step(contract: Contract) -> None:
    steps = ladder_steps(contract, 16)
    compared = {(len(step.tokens), step.end) for step in steps if step.rows}
    for edge in contract.spans:
        for width in (1, 2, contract.widest_step):
            wanted = {edge - 1, edge, edge + 1} if edge < contract.capacity else {edge - 1, edge}
            assert {end for found, end in compared if found == width} >= wanted
        assert edge == contract.capacity or any(step.position < edge < step.end and not step.rows for step in steps)
    rows = 0
    for step in steps:
        assert step.position <= rows, "a step over rows that nothing was written to"
        assert step.end <= contract.capacity
        assert step.rows in (0, len(step.tokens))
        assert step.poison == bool(step.rows)
        rows = step.end
    longest = max(contexts(steps), key=len)
    assert all(np.array_equal(context, longest[: len(context)]) for context in contexts(steps))


# Checkpoints and shapes.


@pytest.mark.parametrize("tied", [False, True])
def test_checkpoints_are_what_transformers_loads(tmp_path: Path, tied: bool) -> None:
    import torch
    from specexport.exporter.checkpoint import Checkpoint

    model = replace(SMALL, tied=tied)
    write_checkpoint(tmp_path / "one", model, seed=1)
    write_checkpoint(tmp_path / "again", model, seed=1)
    write_checkpoint(tmp_path / "near", model, seed=1, strangeness=0.1)
    one, again, near = (Checkpoint.find(str(tmp_path / name)).load("fp16") for name in ("one", "again", "near"))
    assert one.num_parameters() == model.num_parameters
    weights = one.state_dict()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in weights.items())
    difference = (near.state_dict()["model.layers.0.mlp.up_proj.weight"] - weights["model.layers.0.mlp.up_proj.weight"]).float()
    assert difference.std() == pytest.approx(0.1 * model.spread, rel=0.1)
    assert len(list((tmp_path / "one").glob("*.safetensors"))) == model.layers + 2
    embedding = 0 if tied else model.vocab_size * model.hidden  # of which a pass reads one row
    assert bytes_read(tmp_path / "one", "fp16") == 2 * (model.num_parameters - embedding)


def test_the_large_shapes_are_those_of_llama() -> None:
    eight, one = SHAPES["8b"].target, SHAPES["8b"].draft
    assert eight is not None
    assert one is not None
    assert (eight.num_parameters, one.num_parameters) == (8_030_261_248, 1_235_814_400)
    assert SHAPES["8b"].max_draft_tokens >= 7


def test_the_largest_shape_that_fits_is_checked_by_default() -> None:
    def names(gibibytes: int, quick: bool = False) -> list[str]:
        return default_shapes(GPU._replace(memory=gibibytes * 2**30), "fp16", quick)

    assert names(24) == ["tiny", "demo", "8b"]
    assert names(16) == ["tiny", "demo", "1b"]
    assert names(4) == ["tiny", "demo"]
    assert names(140, quick=True) == ["tiny", "demo"]
    assert default_shapes(GPU._replace(memory=24 * 2**30), "fp32", False) == ["tiny", "demo", "1b"]


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
    found = Measurements(passes((1, 512, 1.0)), [], [round_time(gpu=1.2, wall=1.25, parts=1.0)], [Speed(0, steady(50.0), 1.0, 1.0, 0.01)])
    measured = outcome(RIGHT, measurements=found, measures=judge(found, READS, True), clocks={"pstate": "P0"})
    path = report(measured, outcome(WRONG)).write(tmp_path / "new")
    assert path.name.startswith("nvidia-h200-sxm-tensorrt-20")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    row = json.loads(path.read_text())
    assert (row["format"], row["engine"], row["passed"], row["copy_bytes_per_second"]["median"]) == (1, "tensorrt", False, 4e12)
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
    text = render(report(outcome(RIGHT, WRONG), outcome(RIGHT, measurements=found, measures=judge(found, READS, False))))
    assert "proved   parity: 1e-5 off" in text
    assert "FAILED   ladder: 0.3 off" in text
    assert "NOT MET  round over the sum of its passes: 1.2 x at the worst (greedy, k 0, span 512), asked <= 1.05 x" in text
    assert "met      host launches a round: 1 at the worst" in text
    without = Measurements(passes((1, 512, 1.0)), [], [], [])
    assert "this engine runs no rounds on the device" in render(report(outcome(RIGHT, measurements=without)))


def test_the_environment_does_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment_module.clocks() == {}
    facts = environment_module.environment(GPU)
    assert facts["specexport"]["commit"] == ""
    assert facts["gpu"] == {"name": GPU.name, "compute_capability": "9.0", "memory_bytes": GPU.memory, "driver_serves_cuda": "13.0"}
    assert "numpy" in facts["packages"]
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '580.1, P0, 1980 MHz, 1980 MHz, 3201 MHz, 3201 MHz, 90.1 W, 700.00 W, 40'\n")
    fake.chmod(0o755)
    assert environment_module.clocks() == dict(
        zip(environment_module.CLOCKS, ["580.1", "P0", *["1980 MHz"] * 2, *["3201 MHz"] * 2, "90.1 W", "700.00 W", "40"], strict=True)
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
    reports = {name: replace(report(), engine=name, outcomes=[]) for name in ("tensorrt", "tensorrt-rtx", "without plans")}
    check(Plan(["tiny"], ["fp16"], QUICK), reports, tmp_path, lines.append)
    errors = {name: entry.outcomes[0].error for name, entry in reports.items()}
    assert errors == {
        "tensorrt": "no kernel for this card; choose another",
        "tensorrt-rtx": "ValueError: a mistake",
        "without plans": "no plans were made here: the card is too old",
    }
    assert [json.loads(path.read_text())["outcomes"][0]["error"] for path in sorted(tmp_path.iterdir())] == list(errors.values())
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
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=120)


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
        (["--precision", "int4"], "'int4' is none of fp32, fp16, bf16"),
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
    assert done.stderr.splitlines() == ["Error: the package click is not installed; from the checkout: pip install -e '.[export,tensorrt]'"]


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
        patch.setattr("specexport.engines.cuda.CudaDevice", lambda: FakeDevice(memory=1 << 20))
        patch.setattr(check_module, "check", checked)

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(command_module.main, ["--output", str(self.output), *arguments])


def test_everything_proved_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, tmp_path, {})
    result = host.run()
    assert result.exit_code == 0, result.output
    assert {json.loads(path.read_text())["engine"] for path in tmp_path.glob("*.json")} == set(command_module.GPU_ENGINES)
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
