"""The decoder on the CPU provider, whose device is the host, and its calls of ONNX Runtime, recorded.

No GPU is needed.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from specexport.bundle import Contract, ModelSpec, Precision
from specexport.engines.base import Decoder
from specexport.engines.onnxruntime.cpu import OrtDecoder
from specexport.engines.onnxruntime.cuda_decoder import OrtCudaDecoder, Place
from specexport.engines.onnxruntime.graphs import open_session as cpu_session
from specexport.errors import BundleError, EngineError
from specexport.exporter.passes.gqa_lengths import keep_lengths_on_device
from specexport.runtime.proofs.parity import POISON, prove_decoder
from support.recorded_onnxruntime import Recorder, StillSession
from support.refusals import refused
from support.tiny import CONTRACT, LLAMA, Exported, export_cached, save_model

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
        runtime, cpu_session(path, 0), Place("cpu", 0), path, spec or exported.spec, contract or exported.contract
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


def test_a_sliding_windows_logits(tmp_path: Path) -> None:
    checkpoint = save_model(tmp_path / "checkpoint", "mistral", config=LLAMA | dict(sliding_window=8))
    exported = as_for_cuda(export_cached(checkpoint, tmp_path, ("ort",)))
    prove_decoder(make(exported), exported.reference, "onnxruntime-cuda", "ort", "target", "fp32")


def test_greedy_tokens_are_those_of_the_cpu_engine(decoder: OrtCudaDecoder, exported: Exported) -> None:
    def greedy(decoder: Decoder) -> list[int]:
        tokens = TOKENS[:11]
        fresh(decoder).feed(tokens[:-1], 0)
        while len(tokens) < 60:
            logits = decoder.step(tokens[-1:], len(tokens) - 1)
            tokens.append(int(logits[-1].argmax()))
        return tokens[11:]

    on_cpu = exported.decoder("ort")
    assert isinstance(on_cpu, OrtDecoder)
    tokens = greedy(decoder)
    assert tokens == greedy(on_cpu)
    assert len(set(tokens)) > 5


@pytest.mark.parametrize("width", range(1, 17))
def test_every_width_gives_the_last_tokens_logits(width: int, decoder: OrtCudaDecoder) -> None:
    fresh(decoder).step(TOKENS[:3], 0)
    logits = decoder.step(TOKENS[3 : 3 + width], 3).copy()
    assert logits.shape == (width if width <= 5 else 1, 288)
    fresh(decoder)
    for place in range(3 + width):
        last = decoder.step(TOKENS[place : place + 1], place)
    np.testing.assert_allclose(logits[-1], last[0], atol=1e-4)


def test_rows_that_were_read_are_the_same_when_they_are_written_back(decoder: OrtCudaDecoder) -> None:
    fresh(decoder).feed(TOKENS[:16], 0)
    expected = decoder.step(TOKENS[16:21], 16).copy()
    saved = decoder.read_rows(16)
    decoder.overwrite_rows(4, POISON)
    decoder.write_rows(saved, 4, 16)
    assert all(np.array_equal(part, again) for part, again in zip(saved, decoder.read_rows(16), strict=True))
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)
    fresh(decoder)
    decoder.write_rows(saved, 2, 15)
    assert all(not cache[:, :, :2].any() and not cache[:, :, 15:].any() for cache in rows(decoder, 64))


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


def test_a_rewritten_step_is_bit_identical(decoder: OrtCudaDecoder) -> None:
    fresh(decoder).feed(TOKENS[:16], 0)
    expected = decoder.step(TOKENS[16:21], 16).copy()
    for wrong in range(1, 5):
        decoder.step([7] * wrong, 16)
        decoder.feed([9] * 11, 16 + wrong)
        assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)


def test_rows_behind_the_position_are_never_read_and_those_before_are(decoder: OrtCudaDecoder) -> None:
    fresh(decoder).feed(TOKENS[:16], 0)
    expected = decoder.step(TOKENS[16:21], 16).copy()
    decoder.overwrite_rows(16, POISON)
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)
    decoder.overwrite_rows(15, 1.0)
    assert not np.allclose(decoder.step(TOKENS[16:21], 16), expected, atol=1e-2)


def test_a_write_beyond_the_capacity_is_no_silent_loss(decoder: OrtCudaDecoder) -> None:
    with refused(EngineError, "64"):
        decoder.step(TOKENS[:2], 63)


def test_logits_come_back_into_one_buffer_a_width(decoder: OrtCudaDecoder) -> None:
    first = {width: decoder.step(TOKENS[:width], 0) for width in (1, 2, 5, 16)}
    kept = {width: logits.copy() for width, logits in first.items()}
    for width, logits in first.items():
        again = decoder.step(TOKENS[10 : 10 + width], 0)
        assert again.ctypes.data == logits.ctypes.data
        assert not np.allclose(logits, kept[width])


# What is called, in which order


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
    return Recorded(
        OrtCudaDecoder(recorder, recorder.session(path), Place("cpu", 0), path, exported.spec, exported.contract),
        recorder,
    )


def test_every_width_is_bound_and_captured_at_load_under_a_number_of_its_own(recorded: Recorded) -> None:
    calls = recorded.recorder.calls
    runs = [call for call in calls if call[0] == "run"]
    assert [graph for _, graph, _ in runs] == ["1", "2", "3", "4", "5", "16"]
    assert [call[0] for call in calls].count("bind") == len(runs)
    values = [call for call in calls if call[0] == "value"]
    assert calls.index(values[-1]) < calls.index(runs[0])
    on_host = [shape for _, shape, *device in values if not device]
    assert on_host == [(1, rows, 288) for rows in (1, 2, 3, 4, 5, 1)]  # what logits come back to
    assert {tuple(device) for _, _, *device in values if device} == {("cpu", 0)}


def test_a_step_is_two_updates_a_run_and_a_copy_back(recorded: Recorded) -> None:
    calls = recorded.calls(lambda: recorded.decoder.step([7, 8], 3))
    assert [call[0] for call in calls] == ["update", "update", "run", "copy"]
    (_, tokens_at, tokens), (_, position_at, position), (_, graph, bound), (_, _, logits_at) = calls
    assert (tokens, position, graph) == ([7, 8], [3], "2")
    assert (tokens_at, position_at, logits_at) == tuple(dict(bound)[name] for name in ("tokens", "position", "logits"))


def test_a_chunk_is_padded_and_nobody_waits_for_its_logits(recorded: Recorded) -> None:
    calls = recorded.calls(lambda: recorded.decoder.feed([7] * 9, 3))
    assert [call[0] for call in calls] == ["update", "update", "run"]
    assert calls[0][2] == [7] * 9 + [0] * 7
    assert calls[2][1] == "16"


def test_what_a_longer_chunk_left_behind_is_no_padding(recorded: Recorded) -> None:
    recorded.decoder.feed([7] * 16, 0)
    assert recorded.calls(lambda: recorded.decoder.feed([8] * 6, 0))[0][2] == [8] * 6 + [0] * 10


def test_a_whole_chunk_with_logits_is_one_run(recorded: Recorded) -> None:
    assert [call[1] for call in recorded.calls(lambda: recorded.decoder.step([7] * 16, 0)) if call[0] == "run"] == [
        "16"
    ]
    assert [call[1] for call in recorded.calls(lambda: recorded.decoder.step([7] * 9, 0)) if call[0] == "run"] == [
        "16",
        "1",
    ]


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


def test_overwritten_rows_go_back_to_the_device(recorded: Recorded) -> None:
    calls = recorded.calls(lambda: recorded.decoder.overwrite_rows(60, 2.0))
    assert [(what, rows.count(2.0), rows.count(0.0) > 0) for what, _, rows in calls] == [
        ("update", 2 * 4 * 8, True)
    ] * len(PAST)
    (_, _, bound), *_ = (call for call in recorded.calls(lambda: recorded.decoder.step([1], 0)) if call[0] == "run")
    assert [address for _, address, _ in calls] == [dict(bound)[name] for name in PAST]


# The types of the caches, and what goes wrong


@pytest.mark.parametrize(
    ("precision", "kind", "element"),
    [("fp16", "tensor(float16)", np.float16), ("bf16", "tensor(bfloat16)", 16)],
    ids=["fp16", "bf16"],
)
def test_half_precision_caches(precision: Precision, kind: str, element: Any, exported: Exported) -> None:
    session = StillSession(exported.spec, CONTRACT.capacity, kind)
    contract = dataclasses.replace(CONTRACT, precision=precision)
    decoder = OrtCudaDecoder(ort, session, Place("cpu", 0), Path("graph.onnx"), exported.spec, contract)
    places = {(device, number, kind, tuple(shape)) for _, device, number, kind, shape, _ in session.bound}
    assert places == {("cpu", 0, element, (1, 2, CONTRACT.capacity, 8))}
    decoder.overwrite_rows(3, -1.5)
    for cache in decoder._caches:
        bits = cache.numpy()
        assert bits.dtype.itemsize == 2
        values = (bits.astype(np.uint32) << 16).view(np.float32) if precision == "bf16" else bits
        assert (values[:, :, :3] == 0).all()
        assert (values[:, :, 3:] == -1.5).all()


def test_a_graph_in_another_precision_than_the_manifests(exported: Exported) -> None:
    with refused(BundleError, "past.0.key"):
        make(exported, contract=dataclasses.replace(CONTRACT, precision="fp16"))


def test_a_graph_with_other_layers_than_the_manifests(exported: Exported) -> None:
    spec = exported.spec
    with refused(BundleError, "past.1.key"):
        make(exported, spec=dataclasses.replace(spec, layers=spec.layers[:1]))
    with refused(BundleError, "past.0.key", "128"):
        make(exported, contract=dataclasses.replace(CONTRACT, capacity=128))
    with refused(BundleError, "at_most_5_rows"):
        make(exported, spec=dataclasses.replace(spec, vocab_size=300))
    with refused(BundleError, "at_most_4_rows"):
        make(exported, contract=dataclasses.replace(CONTRACT, max_draft_tokens=3))


FULL = "bfc_arena.cc:360 void* Allocate(size_t) Failed to allocate memory for requested buffer of size 2147483648\n"


def test_too_little_memory_for_the_buffers_says_how_much_they_are(exported: Exported) -> None:
    def full(*given: Any) -> Any:
        raise RuntimeError(FULL)

    runtime = SimpleNamespace(OrtValue=SimpleNamespace(ortvalue_from_numpy=full), RunOptions=ort.RunOptions)
    with refused(EngineError, "--prompt-chunk", "16.0", code="out_of_device_memory"):
        make(exported, runtime=runtime)


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
