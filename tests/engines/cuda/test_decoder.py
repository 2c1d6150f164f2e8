"""A compiled model as a decoder: which rows it writes and reads, in which passes, and in every precision."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from specexport.bundle import ELEMENT_BYTES, Contract, Precision
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.compile import model_profiles
from specexport.engines.tensorrt.plan import LoadedPlan
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan
from support.micro import TYPES, VOCAB, Micro, MicroDecoder, Overflowing, graph
from support.refusals import refused

pytestmark = pytest.mark.usefixtures("short_spans")
CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
WIDEST, CHUNK, CAPACITY = 5, 16, 64
MODEL = Micro()
POISON = 1e4
TOKENS: list[int] = np.random.default_rng(7).integers(0, VOCAB, 1100).tolist()


@dataclass
class Made:
    decoder: DeviceDecoder
    device: FakeDevice
    contract: Contract

    def caches(self, end: int) -> list[np.ndarray]:
        """The first `end` rows of each, `[heads, end, head_dim]`."""
        found = []
        for address, layer in self.decoder._caches.values():
            shape = (layer.num_kv_heads, self.contract.capacity, layer.head_dim)
            size = ELEMENT_BYTES[self.contract.precision] * int(np.prod(shape))
            found.append(self.device.view(address, size).view(TYPES[self.contract.precision]).reshape(shape)[:, :end])
        return found

    def passes(self) -> list[tuple[int, int]]:
        """(width, span) of each pass since the last call, as they were asked for; those of replayed graphs are not
        seen.
        """
        lines = [line for line in self.device.log if line.startswith("execute")]
        self.device.log.clear()
        found = [re.findall(r"tokens\[1, (\d+)\] columns\[(\d+)\]", line) for line in lines]
        return [(int(width), int(span)) for ((width, span),) in found]


def make(
    folder: Path, contract: Contract = CONTRACT, dialect: str = "onnx", model: Micro = MODEL, memory: int = 1 << 30
) -> Made:
    version = "10.16.1" if dialect == "onnx" else "10.3.0"
    device = FakeDevice(memory)
    onnx.save(graph(model, contract, dialect), folder / "model.onnx")
    (folder / "model.plan").write_bytes(plan(folder / "model.onnx", model_profiles(contract, "target"), version))
    loaded = LoadedPlan(Library("tensorrt", FakeTensorRT(device, version)), folder / "model.plan", device)
    scratch = device.allocate(4096, "scratch")
    decoder = DeviceDecoder("target", loaded, model.spec("target"), contract, device, scratch)
    device.synchronize()
    device.log.clear()
    return Made(decoder, device, contract)


KINDS: list[tuple[Precision, str]] = [
    (precision, dialect) for precision in ("fp32", "fp16", "bf16") for dialect in ("onnx", "rows")
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(kind))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    precision, dialect = request.param
    return make(tmp_path_factory.mktemp("model"), replace(CONTRACT, precision=precision), dialect)


def fresh(made: Made) -> MicroDecoder:
    made.decoder.overwrite_rows(0, 0.0)
    made.device.log.clear()
    return MicroDecoder(MODEL, made.contract)


def expected_rows(end: int) -> list[np.ndarray]:
    return [table[TOKENS[:end]].transpose(1, 0, 2) for table, _ in MODEL.tables()]


def test_feeding_any_number_of_tokens_up_to_the_capacity(made: Made) -> None:
    """From 1 to a chunk and a step, at every position near the end: all rows are written, each in its place, and none
    before it.
    """
    fresh(made)
    first = CAPACITY - 2 * CHUNK - WIDEST
    made.decoder.feed(TOKENS[:first], 0)
    expected = expected_rows(CAPACITY)
    lengths = (
        range(1, CHUNK + WIDEST + 1) if made.contract.precision == "fp32" else (1, WIDEST + 1, CHUNK, CHUNK + WIDEST)
    )
    for position in range(first, CAPACITY):
        for length in lengths:
            end = position + length
            if end > CAPACITY:
                continue
            made.decoder.overwrite_rows(position, POISON)
            made.decoder.feed(TOKENS[position:end], position)
            for cache, rows in zip(made.caches(end), expected, strict=True):
                assert np.array_equal(cache.astype(np.float32), rows[:, :end]), (position, length)
        made.decoder.feed([TOKENS[position]], position)


@pytest.mark.parametrize("end", [5, 15, 16, 17, 31, 32, 33, 48, 63, 64])
def test_logits_at_every_width_and_on_either_side_of_each_span(made: Made, end: int) -> None:
    """Rows behind them are poisoned: one that is looked at shows at once, as does one within that is not."""
    for width in range(1, WIDEST + 1):
        host, position = fresh(made), end - width
        made.decoder.feed(TOKENS[:position], 0)
        host.feed(TOKENS[:position], 0)
        made.decoder.overwrite_rows(position, POISON)
        logits = made.decoder.step(TOKENS[position:end], position)
        assert logits.shape == (width, VOCAB)
        assert logits.dtype == np.float32
        assert np.allclose(logits, host.step(TOKENS[position:end], position), atol=1e-5), width


@pytest.mark.parametrize("count", [6, 16, 17, 21, 40])
def test_a_prompt_chunk_gives_the_logits_of_its_last_token(made: Made, count: int) -> None:
    host = fresh(made)
    for position in (0, 64 - count):
        made.decoder.overwrite_rows(position, POISON)
        if position:
            made.decoder.feed(TOKENS[:position], 0)
            host.feed(TOKENS[:position], 0)
        logits = made.decoder.step(TOKENS[position : position + count], position)
        assert logits.shape == (1, VOCAB)
        assert np.allclose(logits, host.step(TOKENS[position : position + count], position), atol=1e-5)


def test_a_write_beyond_the_capacity_is_not_even_tried(made: Made) -> None:
    for call in (made.decoder.step, made.decoder.feed):
        for position, count in ((64, 1), (60, 5), (50, 15)):
            with refused(EngineError, "64"):
                call(TOKENS[:count], position)


def test_steps_and_feeds_of_one_width_are_two_graphs(made: Made) -> None:
    """A feed brings no logits back: two kinds of work under one key would replay the wrong one."""
    host = fresh(made)
    for decoder in (made.decoder, host):
        decoder.feed(TOKENS[:4], 0)  # type: ignore[attr-defined]
    for position in (4, 8):
        for decoder in (made.decoder, host):
            decoder.feed(TOKENS[position : position + 2], position)  # type: ignore[attr-defined]
        ours = made.decoder.step(TOKENS[position + 2 : position + 4], position + 2)
        assert np.allclose(ours, host.step(TOKENS[position + 2 : position + 4], position + 2), atol=1e-5)


def test_a_rejected_token_whose_rows_are_infinite_leaves_nothing(tmp_path: Path) -> None:
    """A masked row has weight 0, and 0 * inf is NaN."""
    contract, model, bad = replace(CONTRACT, precision="fp16"), Overflowing(), VOCAB - 1
    made, host = make(tmp_path, contract, "rows", model), MicroDecoder(MODEL, contract)
    for decoder in (made.decoder, host):
        decoder.feed(TOKENS[:9], 0)  # type: ignore[attr-defined]
    for rejected in ([bad], [4, bad, bad], [bad, 5, 6]):
        logits = made.decoder.step([TOKENS[9], *rejected], 9)
        first = 1 + rejected.index(bad)
        assert np.isfinite(logits[:first]).all()
        assert not np.isfinite(logits[first:, 0]).any()
        expected = host.step([TOKENS[9]], 9)
        assert np.allclose(made.decoder.step([TOKENS[9]], 9), expected, atol=1e-5)
        made.decoder.step([TOKENS[9], *rejected], 9)
        made.decoder.feed([TOKENS[9]], 9)
        assert np.allclose(made.decoder.step([TOKENS[10]], 10), host.step([TOKENS[10]], 10), atol=1e-5)
    made.device.log.clear()
    made.decoder.step([TOKENS[11]], 11)
    assert made.device.log == ["launch", "wait"], "nothing is cleared where all was finite"


@pytest.mark.parametrize(
    ("chunk", "passes"),
    [(16, [(16, 16), (16, 32), (16, 64)]), (24, [(24, 32), (24, 64)]), (3, [(3, 16), (3, 32), (3, 64)])],
)
def test_warming_up_captures_prompt_chunks_and_cleans_the_caches(
    tmp_path: Path, chunk: int, passes: list[tuple[int, int]]
) -> None:
    """At every span that holds one; row -1 is none.

    A row of rubbish, and above all of NaN, would poison what masks it.
    """
    made = make(tmp_path, replace(CONTRACT, prompt_chunk=chunk))
    made.decoder.overwrite_rows(0, np.nan)
    made.device.log.clear()
    made.decoder.warm_up()
    written = [int(slot.host[0]) for slot in made.decoder.positions.values()]
    assert min(written) >= 0
    assert made.passes()[: len(passes)] == passes
    assert not any(cache.any() for cache in made.caches(CAPACITY))
    made.decoder.feed(TOKENS[:48], 0)
    assert made.passes() == [], "all of them are replayed"


@pytest.mark.parametrize("value", [0.0, 1.5, -POISON, np.nan])
@pytest.mark.parametrize("start", [0, 1, 40, 63])
def test_overwriting_rows(made: Made, start: int, value: float) -> None:
    """Of every head from the row on, and of none before; what 16 bits cannot hold is cut off."""
    made.decoder.overwrite_rows(0, -2.25)
    made.decoder.overwrite_rows(start, value)
    kind = TYPES[made.contract.precision]
    for cache in made.caches(CAPACITY):
        assert (cache[:, :start] == kind(-2.25)).all()
        assert np.array_equal(
            cache[:, start:].astype(np.float32),
            np.full(cache[:, start:].shape, kind(value), np.float32),
            equal_nan=True,
        )
    made.decoder.overwrite_rows(0, 0.0)


@pytest.mark.parametrize(
    ("other", "vocab_size"),
    [
        (replace(CONTRACT, max_draft_tokens=3), VOCAB),
        (CONTRACT, VOCAB + 1),
    ],
)
def test_a_plan_that_gives_other_logits_is_refused(tmp_path: Path, other: Contract, vocab_size: int) -> None:
    """It would leave rows of an earlier pass in the buffer, or write over its end."""
    made = make(tmp_path)
    onnx.save(graph(replace(MODEL, vocab_size=vocab_size), other), tmp_path / "other.onnx")
    (tmp_path / "other.plan").write_bytes(plan(tmp_path / "other.onnx", model_profiles(CONTRACT, "target")))
    loaded = LoadedPlan(Library("tensorrt", FakeTensorRT(made.device)), tmp_path / "other.plan", made.device)
    decoder = DeviceDecoder("target", loaded, MODEL.spec("target"), CONTRACT, made.device, made.decoder._scratch)
    with refused(EngineError, "1.0"):
        decoder.step(TOKENS[:5], 0)
    with pytest.raises(EngineError, match="logits has the shape") if vocab_size > VOCAB else nullcontext():
        decoder.feed(TOKENS[:16], 0)  # one row


@pytest.mark.parametrize(("start", "end"), [(0, 20), (7, 20), (19, 20), (0, 1)])
def test_rows_go_to_the_host_and_back(made: Made, start: int, end: int) -> None:
    """Of every head the rows asked for and no other; the host waits for both."""
    for position in range(CAPACITY):
        made.decoder.overwrite_rows(position, position / 4)
    before = [cache.copy() for cache in made.caches(CAPACITY)]
    saved = made.decoder.read_rows(end)
    assert [np.ascontiguousarray(cache[:, :end]).tobytes() for cache in before] == [rows.tobytes() for rows in saved]
    made.decoder.overwrite_rows(0, -1.0)
    made.device.log.clear()
    made.decoder.write_rows(saved, start, end)
    assert made.device.log[-1] == "wait"
    for cache, old in zip(made.caches(CAPACITY), before, strict=True):
        assert np.array_equal(cache[:, start:end], old[:, start:end])
        assert (cache[:, :start] == -1).all()
        assert (cache[:, end:] == -1).all()
    made.decoder.overwrite_rows(0, 0.0)
