"""The confidence head of a draft in both decoders of ONNX Runtime; the one for CUDA on the CPU provider, and its calls
recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from specexport.bundle import Bundle, ModelSpec
from specexport.engines.onnxruntime.cpu import OrtDecoder, load
from specexport.engines.onnxruntime.cuda_decoder import OrtCudaDecoder, OrtDevice
from specexport.engines.onnxruntime.graphs import open_session as cpu_session
from specexport.errors import BundleError, EngineError
from specexport.runtime.proofs.parity import POISON, max_error
from support.recorded_onnxruntime import Recorder
from support.refusals import refused
from support.tiny import LLAMA, Exported, export_cached, save_model

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 288, 64).tolist()
WEIGHTS = RNG.normal(size=65).astype(np.float32)
F = 64


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    base = tmp_path_factory.mktemp("exported")
    return export_cached(save_model(base / "checkpoint", config=LLAMA), base / "graphs", ("ort",), role="draft")


def on_cpu(exported: Exported, spec: ModelSpec | None = None) -> OrtDecoder:
    return OrtDecoder(exported.folder / exported.spec.graphs["ort"], spec or exported.spec, exported.contract)


def on_device(exported: Exported, spec: ModelSpec | None = None, recorder: Recorder | None = None) -> OrtCudaDecoder:
    path = exported.folder / exported.spec.graphs["ort"]
    session = recorder.session(path) if recorder else cpu_session(path, 0)
    return OrtCudaDecoder(recorder or ort, session, OrtDevice("cpu", 0), path, spec or exported.spec, exported.contract)


BOTH = pytest.mark.parametrize("make", [on_cpu, on_device])
Make = Callable[..., Any]


@BOTH
def test_the_logits_are_still_the_references(make: Make, exported: Exported) -> None:
    decoder = make(exported)
    decoder.head.set_weights(WEIGHTS)
    assert max_error(decoder, exported.reference) < 1e-4


@BOTH
def test_a_confidence_is_of_the_last_row_and_by_the_weights(make: Make, exported: Exported) -> None:
    decoder = make(exported)
    assert decoder.head.size == F
    for position, width in ((0, 16), (16, 1), (17, 2), (19, 5), (24, 9), (33, 1)):
        logits = decoder.step(TOKENS[position : position + width], position)
        assert decoder.head.features().shape == (len(logits), F)
        assert decoder.head.features().dtype == np.float32
        assert decoder.head.confidence() == 0.0
    decoder.head.set_weights(WEIGHTS)
    assert decoder.head.confidence() == 0.0  # for the passes to come
    decoder.step(TOKENS[19:24], 19)
    features = decoder.head.features().copy()
    assert type(decoder.head.confidence()) is float
    assert decoder.head.confidence() == pytest.approx(float(features[-1] @ WEIGHTS[:-1] + WEIGHTS[-1]), abs=1e-4)
    for row, given in enumerate(features):
        assert decoder.head.confidence(row) == pytest.approx(float(given @ WEIGHTS[:-1] + WEIGHTS[-1]), abs=1e-4)
    decoder.head.set_weights(np.append(np.zeros(F, np.float32), np.float32(2.5)))
    decoder.step(TOKENS[19:24], 19)
    assert decoder.head.confidence() == 2.5
    np.testing.assert_array_equal(decoder.head.features(), features)


@BOTH
def test_a_steps_confidence_does_not_hang_on_stale_rows(make: Make, exported: Exported) -> None:
    decoder = make(exported)
    decoder.head.set_weights(WEIGHTS)
    decoder.step(TOKENS[:5], 0)
    expected = decoder.head.confidence()
    decoder.overwrite_rows(0, POISON)
    decoder.step(TOKENS[:5], 0)
    assert decoder.head.confidence() == expected


@BOTH
@pytest.mark.parametrize("shape", [(F,), (F + 2,), (1, F + 1), ()])
def test_weights_of_another_number_are_refused(make: Make, shape: tuple[int, ...], exported: Exported) -> None:
    decoder = make(exported)
    with refused(EngineError, "65"):
        decoder.head.set_weights(np.zeros(shape, np.float32))


@BOTH
def test_a_graph_with_another_head_than_the_manifests(make: Make, exported: Exported) -> None:
    with refused(BundleError, "confidence"):
        make(exported, dataclasses.replace(exported.spec, features=0))
    with refused(BundleError, "65"):
        make(exported, dataclasses.replace(exported.spec, features=65))


@BOTH
def test_a_graph_without_the_manifests_head(make: Make, exported: Exported, tmp_path: Path) -> None:
    plain = export_cached(Path(exported.spec.source), tmp_path, ("ort",))
    assert make(plain).head is None
    with refused(BundleError, "confidence"):
        make(plain, dataclasses.replace(plain.spec, features=F))


def test_an_engine_has_the_head_of_its_draft(built: Path) -> None:
    bundle = Bundle.open(built)
    assert bundle.manifest.target.features == 0
    assert bundle.manifest.drafts[0].model.features == F
    engine = load(bundle)
    assert engine.draft is not None
    head = engine.draft.head
    assert head is not None
    head.set_weights(WEIGHTS)
    logits = engine.draft.decoder.step(TOKENS[:5], 0)
    assert len(head.features()) == len(logits) == 5
    assert head.confidence() != 0.0
    assert load(Bundle(bundle.root, dataclasses.replace(bundle.manifest, drafts=()))).draft is None


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
    return Recorded(on_device(exported, recorder=recorder), recorder)


def bound_in(calls: list[tuple[Any, ...]]) -> dict[str, int]:
    (bound,) = (call[2] for call in calls if call[0] == "run")
    return dict(bound)


def test_new_weights_are_written_where_every_width_reads_them(recorded: Recorded) -> None:
    head = recorded.decoder.head
    assert head is not None
    before = [
        bound_in(recorded.calls(lambda width=width: recorded.decoder.step([7] * width, 3))) for width in (1, 2, 5, 16)
    ]
    ((what, place, values),) = recorded.calls(lambda: head.set_weights(WEIGHTS))
    assert (what, values) == ("update", WEIGHTS.tolist())
    assert {bound["head"] for bound in before} == {place}
    after = [
        bound_in(recorded.calls(lambda width=width: recorded.decoder.step([7] * width, 3))) for width in (1, 2, 5, 16)
    ]
    assert after == before
    assert len({bound[name] for bound in before for name in ("features", "confidence", "logits")}) == 3 * 4
