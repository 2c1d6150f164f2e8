"""ONNX Runtime's sessions on a simulated GPU: passes, whole rounds over them, and what is said when one fails.

The CPU provider computes what a run enqueues. No GPU is needed.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from specexport.bundle import Bundle, Contract
from specexport.engines.base import Decoder, OpenedDraft
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.onnxruntime import cuda
from specexport.engines.onnxruntime.device_graph import explain
from specexport.errors import BundleError, EngineError
from specexport.exporter.passes.cuda_graphs import keep_lengths_on_device
from specexport.runtime.proofs.parity import POISON, measure, passed
from specexport.runtime.session import Session
from support.doubles import with_models
from support.fake_device import FakeDevice
from support.micro import VOCAB, micro_bundle
from support.micro_hidden import KEPT, hidden_bundle
from support.refusals import refused
from support.stream_onnxruntime import StreamSession, device_decoder
from support.tiny import Exported, export_cached, save_model

TOKENS: list[int] = np.random.default_rng(0).integers(0, 288, 64).tolist()
CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    base = tmp_path_factory.mktemp("exported")
    exported = export_cached(save_model(base / "checkpoint"), base / "graphs", ("ort",))
    path = exported.folder / exported.spec.graphs["ort"]
    model = ir.load(path)
    keep_lengths_on_device(model)
    ir.save(model, path)
    return exported


@pytest.fixture(scope="module")
def decoder(exported: Exported) -> DeviceDecoder:
    return device_decoder(exported.folder / exported.spec.graphs["ort"], exported.spec, exported.contract)


def fresh(decoder: Decoder) -> Decoder:
    decoder.overwrite_rows(0, 0.0)
    return decoder


def test_the_references_logits(decoder: DeviceDecoder, exported: Exported) -> None:
    (proof,) = measure(OpenedDraft(decoder), exported.reference, ("onnxruntime-cuda", "ort"), "target", "fp32")
    assert passed(proof)
    assert proof.max_error < 1e-4


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 15, 16, 17])
@pytest.mark.parametrize("position", [0, 20, 47])
def test_any_number_of_tokens_leaves_rows_and_logits_of_the_cpu_engine(
    count: int, position: int, decoder: DeviceDecoder, exported: Exported
) -> None:
    on_cpu = exported.decoder("ort")
    for each in (decoder, on_cpu):
        fresh(each)
        for place in range(0, position, 4):
            each.feed(TOKENS[place : min(place + 4, position)], place)
    given = TOKENS[position : position + count]
    np.testing.assert_allclose(decoder.step(given, position)[-1], on_cpu.step(given, position)[-1], atol=1e-4)
    for ours, theirs in zip(*(each.read_rows(position + count) for each in (decoder, on_cpu)), strict=True):
        np.testing.assert_allclose(ours.view(np.float32), theirs, atol=1e-4)


def test_rows_behind_the_position_are_never_read_and_those_before_are(decoder: DeviceDecoder) -> None:
    fresh(decoder).feed(TOKENS[:16], 0)
    expected = decoder.step(TOKENS[16:21], 16).copy()
    decoder.overwrite_rows(16, POISON)
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)
    decoder.overwrite_rows(15, 1.0)
    assert not np.allclose(decoder.step(TOKENS[16:21], 16), expected, atol=1e-2)


def test_a_pass_runs_once_and_is_replayed_from_then_on(exported: Exported) -> None:
    device = FakeDevice()
    path = exported.folder / exported.spec.graphs["ort"]
    decoder = device_decoder(path, exported.spec, exported.contract, device=device)
    decoder.step(TOKENS[:3], 0)
    device.log.clear()
    decoder.step(TOKENS[3:6], 3)
    assert [line for line in device.log if not line.startswith("copy")] == ["launch", "wait"]


def test_a_closed_graph_lets_the_session_go(exported: Exported) -> None:
    decoder = device_decoder(exported.folder / exported.spec.graphs["ort"], exported.spec, exported.contract)
    session = weakref.ref(decoder._graph._session._real)  # type: ignore[attr-defined]
    decoder._graph.close()
    gc.collect()
    assert session() is None


def test_a_failing_pass_says_what_failed(exported: Exported) -> None:
    decoder = device_decoder(exported.folder / exported.spec.graphs["ort"], exported.spec, exported.contract)
    decoder._graph._session.fails = True  # type: ignore[attr-defined]
    with refused(EngineError, "launch"):
        decoder.step([1, 2], 3)
    decoder._graph.close()
    with refused(EngineError, "closed"):
        decoder.step([1, 2], 3)


def for_ort(bundle: Bundle) -> Bundle:
    """The bundle with graphs as those for ONNX Runtime are, which find by themselves the rows that count."""
    specs: dict[Any, Any] = {}
    for role, spec in bundle.manifest.pair.items():
        path = bundle.path(spec.graphs["onnx"])
        model = onnx.load(path)
        (columns,) = (value for value in model.graph.input if value.name == "columns")
        model.graph.input.remove(columns)
        model.graph.initializer.append(numpy_helper.from_array(np.arange(CONTRACT.capacity), "columns"))
        onnx.save(model, path)
        reads = replace(spec.reads, fuse={"ort": spec.reads.fuse["onnx"]}) if spec.reads else None
        specs[role] = replace(spec, graphs={"ort": spec.graphs["onnx"]}, reads=reads)
    return replace(bundle, manifest=with_models(bundle.manifest, specs))


def loaded(bundle: Bundle, device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(cuda, "_session", lambda runtime, path, threads, device, *_: StreamSession(path, device))
    return Session(bundle, cuda._load(ort, bundle, 1, device), policy=False)


@pytest.fixture(params=["a draft", "one that reads hidden states", "one of a cut vocabulary"])
def session(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made = {
        "a draft": lambda: micro_bundle(tmp_path, CONTRACT),
        "one that reads hidden states": lambda: hidden_bundle(tmp_path, CONTRACT, noise=0.02),
        "one of a cut vocabulary": lambda: hidden_bundle(tmp_path, CONTRACT, KEPT, noise=0.02),
    }[request.param]()
    with loaded(for_ort(made), FakeDevice(), monkeypatch) as session:
        yield session


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_k": 9, "verification": "token", "seed": 4},
]


@pytest.mark.parametrize("options", RULES)
@pytest.mark.parametrize("k", [0, 1, 4])
def test_whole_rounds_are_one_launch_and_give_the_hosts_tokens(
    session: Session, k: int, options: dict[str, Any]
) -> None:
    log = session.engine.target._device.log  # type: ignore[attr-defined]
    host = Session(session.bundle, replace(session.engine, rounds=None), policy=False)
    asked: dict[str, Any] = {"num_draft_tokens": k, "max_new_tokens": 12, "stop_token_ids": (), **options}
    for length in (2, 17, 40):
        prompt = [token % VOCAB for token in TOKENS[:length]]
        session.generate(prompt, **asked)  # captures
        log.clear()
        ours = session.generate(prompt, **asked)  # whose prompt's rows are there
        assert ours.statistics.device_seconds
        if session.engine.taps is None:  # a draft that reads hidden states may be fed rows between rounds
            assert log.count("launch") == log.count("wait") == ours.statistics.rounds
        session.reset()
        assert ours.tokens == host.generate(prompt, **asked).tokens
        host.reset()


@pytest.mark.usefixtures("short_spans")
def test_graphs_without_columns_have_one_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(CONTRACT.spans) > 1
    device = FakeDevice()
    with loaded(for_ort(micro_bundle(tmp_path, CONTRACT)), device, monkeypatch):
        greedy_and_block, chunks = 2 * (CONTRACT.max_draft_tokens + 1), 2
        assert device.log.count("capture") == greedy_and_block + chunks


def test_a_model_without_its_graph_is_refused_and_everything_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    with refused(BundleError, "ort"):
        loaded(micro_bundle(tmp_path, CONTRACT), device, monkeypatch)
    assert device.log[-1] == "close"


SOURCE = "/onnxruntime_src/onnxruntime/core"
FULL = (
    f"{SOURCE}/framework/bfc_arena.cc:360 void* Allocate(size_t) "
    "Failed to allocate memory for requested buffer of size 2147483648\n"
)
NO_GPU = (
    f"{SOURCE}/cuda_call.cc:154 CUDA failure 100: no CUDA-capable device is detected ; "
    "GPU=0 ; hostname=secret ; file=a.cc ; line=1 ; \n\n"
)


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        "[ONNXRuntimeError] : 6 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; hostname=secret",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
        NO_GPU,
        "[ONNXRuntimeError] : 1 : FAIL : This session cannot use the graph capture feature as requested",
        f"[ONNXRuntimeError] : 1 : FAIL : {SOURCE}/a.cc:2 bool f() a != b was false. Provider type is not set.\n",
        "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions\nindex: 2",
    ],
)
def test_exceptions_of_onnx_runtime_become_one_line(text: str) -> None:
    error = explain(RuntimeError(text), "x")
    with refused(EngineError, code=("engine_error", "out_of_device_memory")):
        raise error
    assert "secret" not in str(error)
