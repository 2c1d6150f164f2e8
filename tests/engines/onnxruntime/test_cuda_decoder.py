"""The decoder on the CPU provider, whose device is the host, and its calls of ONNX Runtime, recorded.

No GPU is needed.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from specexport.bundle import Contract, ModelSpec, Precision
from specexport.engines.base import Decoder
from specexport.engines.onnxruntime.cuda_decoder import OrtCudaDecoder, OrtDevice
from specexport.engines.onnxruntime.graphs import open_session as cpu_session
from specexport.errors import EngineError
from specexport.exporter.passes.cuda_graphs import keep_lengths_on_device
from specexport.runtime.proofs.parity import POISON, prove_decoder
from support.recorded_onnxruntime import Recorder, StillSession
from support.refusals import refused
from support.tiny import CONTRACT, Exported, export_cached, save_model

TOKENS = np.random.default_rng(0).integers(0, 288, 64).tolist()
PAST = ["past.0.key", "past.0.value", "past.1.key", "past.1.value"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    base = tmp_path_factory.mktemp("exported")
    return as_for_cuda(export_cached(save_model(base / "checkpoint"), base / "graphs", ("ort",)))


def as_for_cuda(exported: Exported) -> Exported:
    path = exported.folder / exported.spec.graphs["ort"]
    model = ir.load(path)
    keep_lengths_on_device(model)
    ir.save(model, path)
    return exported


def make(
    exported: Exported, spec: ModelSpec | None = None, contract: Contract | None = None, runtime: Any = ort
) -> OrtCudaDecoder:
    path = exported.folder / exported.spec.graphs["ort"]
    return OrtCudaDecoder(
        runtime, cpu_session(path, 0), OrtDevice("cpu", 0), path, spec or exported.spec, contract or exported.contract
    )


@pytest.fixture(scope="module")
def decoder(exported: Exported) -> OrtCudaDecoder:
    return make(exported)


def fresh(decoder: Decoder) -> Decoder:
    decoder.overwrite_rows(0, 0.0)
    return decoder


def rows(decoder: OrtCudaDecoder, count: int) -> list[np.ndarray]:
    """The first rows of every cache, copied."""
    return [cache.numpy()[:, :, :count].copy() for cache in decoder._caches]


def test_the_references_logits(decoder: OrtCudaDecoder, exported: Exported) -> None:
    proof = prove_decoder(decoder, exported.reference, "onnxruntime-cuda", "ort", "target", "fp32")
    assert proof.max_error < 1e-4


@pytest.mark.parametrize("width", range(1, 17))
def test_every_width_gives_the_last_tokens_logits(width: int, decoder: OrtCudaDecoder) -> None:
    fresh(decoder).step(TOKENS[:3], 0)
    logits = decoder.step(TOKENS[3 : 3 + width], 3).copy()
    assert logits.shape == (width if width <= 5 else 1, 288)
    fresh(decoder)
    for place in range(3 + width):
        last = decoder.step(TOKENS[place : place + 1], place)
    np.testing.assert_allclose(logits[-1], last[0], atol=1e-4)


@pytest.mark.parametrize("count", [1, 4, 5, 6, 9, 15, 16])
@pytest.mark.parametrize("position", [0, 20, 48])
def test_a_padded_chunk_leaves_the_rows_of_its_tokens(count: int, position: int, decoder: OrtCudaDecoder) -> None:
    prompt = TOKENS[: position + count]

    def fed(*widths: int) -> list[np.ndarray]:
        fresh(decoder)
        place = 0
        for width in widths:
            decoder.feed(prompt[place : place + width], place)
            place += width
        assert place == len(prompt)
        return rows(decoder, len(prompt))

    for ours, one_by_one in zip(fed(*[4] * (position // 4), count), fed(*[1] * len(prompt)), strict=True):
        np.testing.assert_allclose(ours, one_by_one, atol=1e-5)


@pytest.mark.parametrize("position", range(48, 64))
def test_near_the_capacity_a_chunk_is_fed_in_steps(position: int, decoder: OrtCudaDecoder, exported: Exported) -> None:
    on_cpu = exported.decoder("ort")
    for each in (decoder, on_cpu):
        fresh(each)
        for place in range(0, position, 4):
            each.feed(TOKENS[place : min(place + 4, position)], place)
    np.testing.assert_allclose(
        decoder.step(TOKENS[position:], position)[-1], on_cpu.step(TOKENS[position:], position)[-1], atol=1e-4
    )


def test_rows_behind_the_position_are_never_read_and_those_before_are(decoder: OrtCudaDecoder) -> None:
    fresh(decoder).feed(TOKENS[:16], 0)
    expected = decoder.step(TOKENS[16:21], 16).copy()
    decoder.overwrite_rows(16, POISON)
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)
    decoder.overwrite_rows(15, 1.0)
    assert not np.allclose(decoder.step(TOKENS[16:21], 16), expected, atol=1e-2)


@dataclasses.dataclass
class Recorded:
    decoder: OrtCudaDecoder
    recorder: Recorder

    def calls(self, work: Callable[[], object]) -> list[tuple[Any, ...]]:
        self.recorder.calls.clear()
        work()
        return list(self.recorder.calls)


@pytest.fixture
def recorded(exported: Exported) -> Recorded:
    recorder = Recorder()
    path = exported.folder / exported.spec.graphs["ort"]
    session, place = recorder.session(path), OrtDevice("cpu", 0)
    decoder = OrtCudaDecoder(recorder, session, place, path, exported.spec, exported.contract)
    assert not [call for call in recorder.calls if call[0] == "run"]  # what a thread captures is that thread's
    decoder.warm_up()
    return Recorded(decoder, recorder)


def test_every_width_is_bound_and_captured_under_a_number_of_its_own(recorded: Recorded) -> None:
    calls = recorded.recorder.calls
    runs = [call for call in calls if call[0] == "run"]
    assert [graph for _, graph, _ in runs] == ["1", "2", "3", "4", "5", "16"]
    assert [call[0] for call in calls].count("bind") == len(runs)
    values = [call for call in calls if call[0] == "value"]
    assert calls.index(values[-1]) < calls.index(runs[0])
    on_host = [shape for _, shape, *device in values if not device]
    assert on_host == [(1, rows, 288) for rows in (1, 2, 3, 4, 5, 1)]  # what logits come back to
    assert {tuple(device) for _, _, *device in values if device} == {("cpu", 0)}


def test_graphs_are_captured_where_every_width_fits(recorded: Recorded) -> None:
    decoder = recorded.decoder
    decoder.step([1, 2], CONTRACT.capacity - 2)
    decoder.warm_up()
    assert decoder._position_value.numpy().tolist() == [0]


def test_what_a_longer_chunk_left_behind_is_no_padding(recorded: Recorded) -> None:
    recorded.decoder.feed([7] * 16, 0)
    assert recorded.calls(lambda: recorded.decoder.feed([8] * 6, 0))[0][2] == [8] * 6 + [0] * 10


def test_addresses_never_change_and_caches_are_in_place(recorded: Recorded) -> None:
    recorded.calls(lambda: None)
    work = [lambda width=width: recorded.decoder.step(TOKENS[:width], width) for width in (1, 5, 16, 1, 9, 5)]
    runs = [call for each in (work * 2) for call in recorded.calls(each) if call[0] == "run"]
    by_graph: dict[str, set[Any]] = {}
    for _, graph, bound in runs:
        by_graph.setdefault(graph, set()).add(bound)
        names = dict(bound)
        assert all(names[name] == names[name.replace("past", "present")] for name in PAST)
    assert set(by_graph) == {"1", "5", "16"}
    assert all(len(bindings) == 1 for bindings in by_graph.values())
    caches = {tuple(dict(bound)[name] for name in PAST) for bindings in by_graph.values() for bound in bindings}
    assert len(caches) == 1
    assert len(set(*caches)) == len(PAST)
    logits = [dict(*bindings)["logits"] for bindings in by_graph.values()]
    assert len(set(logits)) == 3


@pytest.mark.parametrize(
    ("precision", "kind", "element"),
    [("fp16", "tensor(float16)", np.float16), ("bf16", "tensor(bfloat16)", 16)],
    ids=["fp16", "bf16"],
)
def test_half_precision_caches(precision: Precision, kind: str, element: Any, exported: Exported) -> None:
    session = StillSession(exported.spec, CONTRACT.capacity, kind)
    contract = dataclasses.replace(CONTRACT, precision=precision)
    decoder = OrtCudaDecoder(ort, session, OrtDevice("cpu", 0), Path("graph.onnx"), exported.spec, contract)
    places = {(device, number, kind, tuple(shape)) for _, device, number, kind, shape, _ in session.bound}
    assert places == {("cpu", 0, element, (1, 2, CONTRACT.capacity, 8))}
    decoder.overwrite_rows(3, -1.5)
    for cache in decoder._caches:
        bits = cache.numpy()
        assert bits.dtype.itemsize == 2
        values = (bits.astype(np.uint32) << 16).view(np.float32) if precision == "bf16" else bits
        assert (values[:, :, :3] == 0).all()
        assert (values[:, :, 3:] == -1.5).all()


def test_a_failing_pass_says_which(recorded: Recorded) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=secret")

    recorded.decoder._session.run_with_iobinding = fail
    with refused(EngineError, "launch"):
        recorded.decoder.step([1, 2], 3)


def test_a_closed_decoder_holds_nothing(exported: Exported) -> None:
    decoder = make(exported)
    decoder.step(TOKENS[:2], 0)
    held = [
        weakref.ref(thing)
        for thing in (
            decoder._session,
            decoder._session._sess,
            decoder._position_value,
            *decoder._caches,
            *(thing for bound in decoder._bound.values() for thing in (bound.io, bound.device_logits)),
        )
    ]
    decoder.close()
    decoder.close()
    gc.collect()
    assert [ref() for ref in held if ref() is not None] == []
    for call in (lambda: decoder.step([1], 0), lambda: decoder.step(TOKENS[:7], 0), lambda: decoder.feed([1], 0)):
        with pytest.raises(EngineError):
            call()
