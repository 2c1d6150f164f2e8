"""`scripts/gpu_check` without a GPU: its arithmetic, its steps and its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gpucheck.checkpoints import write_checkpoint
from gpucheck.llama import Llama
from gpucheck.measurements import Measurements, PassTime
from gpucheck.measurements.bandwidth import COPIES, measure_bandwidth
from gpucheck.measurements.rounds import RoundKey, RoundTime
from gpucheck.measurements.speed import measure_speed
from gpucheck.meter import Counts, Meter
from gpucheck.proofs.ladder import ladder_steps
from gpucheck.shapes import SHAPES, bytes_read, default_shapes, stored_bytes_read
from gpucheck.thresholds import Measure, judge
from gpucheck.timing import Spread, interleaved
from specexport.bundle import Bundle, Contract
from specexport.runtime.generation import Generation
from specexport.runtime.proofs.parity import contexts
from specexport.runtime.state.statistics import Statistics
from support.doubles import write_bundle
from support.fake_device import FakeDevice
from support.gpu_measurements import GPU, READS, passes, round_time, steady

SMALL = Llama(2, 32, 4, 2, 48, 16, tied=False, positions=64)


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
    # behind a first round of each
    assert session.asked[3:] == [(prompt, k) for prompt in (5, 6) for k in (0, 2, 4)] * 2
    assert [speed.k for speed in (plain, two, four)] == [0, 2, 4]
    assert [round(speed.over_plain, 6) for speed in (plain, two, four)] == [1.0, 1.0, 2.0]
    assert (plain.tokens_per_second.median, four.tokens_per_second.median) == (
        pytest.approx(50.0),
        pytest.approx(100.0),
    )
    assert (two.mean_acceptance_length, two.host) == (2.0, pytest.approx(1.0))


# What is asked of the measurements.


def judged(
    rounds: list[RoundTime], found: list[PassTime] | None = None, asked_speed: bool = False
) -> dict[str, Measure]:
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
    fine = passes(
        (1, 512, 1.0), (2, 512, 1.14), (8, 512, 1.15), (9, 512, 5.0), (64, 512, 5.0), (1, 1024, 2.0), (8, 1024, 2.3)
    )
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


@pytest.mark.parametrize(
    "contract", [Contract(2048, 4, 64, "fp16"), Contract(1024, 7, 64, "fp16"), Contract(300, 4, 16, "fp32")]
)
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
    from specexport.exporter.checkpoints.find import find_checkpoint

    model = replace(SMALL, tied=tied)
    write_checkpoint(tmp_path / "one", model, seed=1)
    write_checkpoint(tmp_path / "again", model, seed=1)
    write_checkpoint(tmp_path / "near", model, seed=1, strangeness=0.1)
    one, again, near = (find_checkpoint(str(tmp_path / name)).load("fp16") for name in ("one", "again", "near"))
    assert one.num_parameters() == model.num_parameters
    weights = one.state_dict()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in weights.items())
    difference = (
        near.state_dict()["model.layers.0.mlp.up_proj.weight"] - weights["model.layers.0.mlp.up_proj.weight"]
    ).float()
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


def test_quantized_weights_count_as_they_are_stored(tmp_path: Path) -> None:
    """But for the table of an untied model, of which a pass reads a row."""
    manifest = write_bundle(tmp_path / "made").manifest
    target = replace(manifest.target, format="int4")
    entry = replace(manifest.files[target.weights], bytes=10_000)
    bundle = Bundle(tmp_path, replace(manifest, target=target, files=manifest.files | {target.weights: entry}))
    for tied, expected in ((True, 10_000), (False, 10_000 - 300 * 32 // 2)):
        config = {"tie_word_embeddings": tied, "vocab_size": 300, "hidden_size": 32}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert stored_bytes_read(bundle, tmp_path) == expected
