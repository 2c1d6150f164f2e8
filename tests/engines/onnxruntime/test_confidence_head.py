"""The confidence head of a draft on ONNX Runtime's CPU provider; on a simulated GPU nobody reads it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from specexport.bundle import Bundle, ModelSpec
from specexport.engines.onnxruntime.cpu import OrtDecoder, load
from specexport.errors import BundleError, EngineError
from specexport.runtime.proofs.parity import POISON, max_error
from support.refusals import refused
from support.stream_onnxruntime import device_decoder
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


def test_the_logits_are_still_the_references(exported: Exported) -> None:
    decoder = on_cpu(exported)
    decoder.head.set_weights(WEIGHTS)
    assert max_error(decoder, exported.reference) < 1e-4


def test_a_confidence_is_of_the_last_row_and_by_the_weights(exported: Exported) -> None:
    decoder = on_cpu(exported)
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


def test_a_steps_confidence_does_not_hang_on_stale_rows(exported: Exported) -> None:
    decoder = on_cpu(exported)
    decoder.head.set_weights(WEIGHTS)
    decoder.step(TOKENS[:5], 0)
    expected = decoder.head.confidence()
    decoder.overwrite_rows(0, POISON)
    decoder.step(TOKENS[:5], 0)
    assert decoder.head.confidence() == expected


@pytest.mark.parametrize("shape", [(F,), (F + 2,), (1, F + 1), ()])
def test_weights_of_another_number_are_refused(shape: tuple[int, ...], exported: Exported) -> None:
    decoder = on_cpu(exported)
    with refused(EngineError, "65"):
        decoder.head.set_weights(np.zeros(shape, np.float32))


def test_a_graph_with_another_head_than_the_manifests(exported: Exported) -> None:
    with refused(BundleError, "confidence"):
        on_cpu(exported, dataclasses.replace(exported.spec, features=0))
    with refused(BundleError, "65"):
        on_cpu(exported, dataclasses.replace(exported.spec, features=65))


def test_a_graph_without_the_manifests_head(exported: Exported, tmp_path: Path) -> None:
    plain = export_cached(Path(exported.spec.source), tmp_path, ("ort",))
    assert on_cpu(plain).head is None
    with refused(BundleError, "confidence"):
        on_cpu(plain, dataclasses.replace(plain.spec, features=F))


def test_on_a_gpu_the_logits_are_the_same_and_the_head_is_unread(exported: Exported) -> None:
    path = exported.folder / exported.spec.graphs["ort"]
    on_device = device_decoder(path, exported.spec, exported.contract, "draft")
    assert max_error(on_device, exported.reference) < 1e-4


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
