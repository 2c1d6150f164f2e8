from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import specexport
from specexport.bundle import MANIFEST, Bundle, CacheLayer, Contract, Manifest, ModelSpec
from specexport.engines.base import Logits
from specexport.engines.onnxruntime.cpu import availability, load
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.engines.registry import load_engine
from specexport.errors import BundleError, EngineError, SessionClosedError
from specexport.exporter.dialects import Dialect
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE, POISON, max_error
from specexport.runtime.proofs.reference_file import load_reference
from specexport.runtime.session import Session
from specexport.strict import parse, read_json
from support.hub_cache import in_the_hubs_layout
from support.pair import Pair
from support.refusals import refused
from support.tiny import DIALECTS, Exported, export_cached

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 288, 64).tolist()


@pytest.fixture(scope="module")
def graphs(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The target in every dialect; the bundle has no `rows`."""
    return export_cached(pair.target, tmp_path_factory.mktemp("graphs"), stem="target")


@pytest.fixture(scope="module")
def opened(compilable: Path, graphs: Exported) -> Bundle:
    """A bundle of all dialects."""
    bundle = Bundle.open(compilable)
    assert bundle.manifest.contract == graphs.contract
    target = bundle.manifest.target
    paths = target.graphs | {"rows": str(graphs.folder / graphs.spec.graphs["rows"])}
    return dataclasses.replace(
        bundle, manifest=dataclasses.replace(bundle.manifest, target=dataclasses.replace(target, graphs=paths))
    )


@pytest.fixture(scope="module", params=DIALECTS)
def decoder(request: pytest.FixtureRequest, graphs: Exported) -> OrtDecoder:
    return graphs.decoder(request.param)


def make(
    opened: Bundle, dialect: Dialect = "kernels", spec: ModelSpec | None = None, contract: Contract | None = None
) -> OrtDecoder:
    manifest = opened.manifest
    path = opened.path(manifest.target.graphs[dialect])
    return OrtDecoder(path, spec or manifest.target, contract or manifest.contract, dialect=dialect)


def feed(decoder: OrtDecoder, *widths: int) -> Logits:
    """TOKENS in passes of these widths; the logits of the last one, copied."""
    position = 0
    for width in widths:
        logits = decoder.step(TOKENS[position : position + width], position)
        position += width
    return logits.copy()


def test_the_references_logits(decoder: OrtDecoder, opened: Bundle) -> None:
    assert max_error(decoder, load_reference(opened.path(opened.manifest.target.reference))) < 1e-4


@pytest.mark.parametrize("width", range(1, 17))
def test_rows_of_every_width(width: int, decoder: OrtDecoder) -> None:
    logits = feed(decoder, 3, width)
    assert logits.shape == (width if width <= 5 else 1, 288)
    last = feed(decoder, *[1] * (3 + width))
    np.testing.assert_allclose(logits[-1], last[0], atol=1e-4)


def test_a_rewritten_step_is_bit_identical(decoder: OrtDecoder) -> None:
    expected = feed(decoder, 16, 5)
    for wrong in range(1, 5):
        decoder.step([7] * wrong, 16)
        decoder.step([9] * 5, 16 + wrong)
        assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)


def test_rows_behind_the_position_are_never_read(decoder: OrtDecoder) -> None:
    expected = feed(decoder, 16, 5)
    feed(decoder, 16)
    decoder.overwrite_rows(16, POISON)
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)


def test_rows_that_were_read_are_the_same_when_they_are_written_back(decoder: OrtDecoder) -> None:
    """From any row on, into caches that hold others meanwhile; what lies behind them stays."""
    expected = feed(decoder, 16, 5)
    feed(decoder, 16)
    saved = decoder.read_rows(16)
    decoder.overwrite_rows(4, POISON)
    decoder.write_rows(saved, 4, 16)
    assert all(np.array_equal(rows[:, :16], again) for rows, again in zip(saved, decoder.read_rows(16), strict=True))
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), expected)
    decoder.write_rows(saved, 4, 15)
    decoder.overwrite_rows(15, 1.0)
    decoder.write_rows(saved, 0, 15)
    assert not np.allclose(decoder.step(TOKENS[16:21], 16), expected, atol=1e-2)


@pytest.mark.parametrize("dialect", ["onnx", "rows"])
def test_a_pass_looks_at_the_least_span_that_holds_its_rows(
    opened: Bundle, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 16)
    ladder, whole = make(opened, dialect), make(opened)
    ladder.overwrite_rows(0, POISON)
    for width, position in (
        (16, 0),
        (5, 11),
        (5, 12),
        (2, 15),
        (1, 16),
        (16, 16),
        (5, 28),
        (4, 30),
        (16, 32),
        (15, 48),
        (1, 63),
    ):
        np.testing.assert_allclose(
            ladder.step(TOKENS[:width], position), whole.step(TOKENS[:width], position), atol=1e-4
        )
    assert {span for _, span in ladder._bindings} == {16, 32, 64}
    given: list[int] = []
    bind = ladder._bind
    monkeypatch.setattr(ladder, "_bind", lambda width, span: given.append(span) or bind(width, span))
    for end, span in ((16, 16), (17, 32), (32, 32), (33, 64), (64, 64)):
        ladder.step(TOKENS[:7], end - 7)
        assert given[-1] == span
        ladder._bindings.pop((7, span))


def test_a_sequence_up_to_the_last_row(decoder: OrtDecoder, pair: Pair) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TOKENS])).logits[0, -5:].numpy()
    np.testing.assert_allclose(feed(decoder, 16, 16, 16, 11, 5), expected, atol=1e-3)
    np.testing.assert_allclose(feed(decoder, 16, 16, 16, 15, 1)[-1], expected[-1], atol=1e-3)


def test_a_write_beyond_the_capacity_is_no_silent_loss(decoder: OrtDecoder) -> None:
    with refused(EngineError, "64"):
        decoder.step(TOKENS[:2], 63)


def test_two_engines_of_one_process_do_not_share_caches(opened: Bundle) -> None:
    one, other = make(opened), make(opened)
    expected = feed(one, 16, 5)
    feed(one, 16)
    other.step([9] * 16, 0)
    assert np.array_equal(one.step(TOKENS[16:21], 16), expected)


def test_preparing_reads_the_weights_and_leaves_no_row_that_counts(opened: Bundle) -> None:
    with Session(opened, load(opened), policy=False) as session:
        expected = session.generate([5, 6, 7], max_new_tokens=6).tokens
    with Session(opened, load(opened), policy=False) as session:
        session.prepare()
        assert session.engine.draft is not None
        for decoder in (session.engine.target, session.engine.draft.decoder):
            assert any(rows.any() for rows in decoder.read_rows(1))
        assert session.generate([5, 6, 7], max_new_tokens=6).tokens == expected


def test_a_graph_with_other_layers_than_the_manifests(opened: Bundle) -> None:
    target = opened.manifest.target
    with refused(BundleError, "past.1.key"):
        make(opened, spec=dataclasses.replace(target, layers=target.layers[:1]))
    with refused(BundleError, "past.0.key"):
        make(opened, spec=dataclasses.replace(target, layers=(CacheLayer(1, 8),) * 2))
    with refused(BundleError, "at_most_5_rows"):
        make(opened, spec=dataclasses.replace(target, vocab_size=300))
    with refused(BundleError, "past.0.key", "128"):
        make(opened, contract=dataclasses.replace(opened.manifest.contract, capacity=128))
    with refused(BundleError, "at_most_4_rows"):
        make(opened, contract=dataclasses.replace(opened.manifest.contract, max_draft_tokens=3))


HALF: tuple[Dialect, ...] = ("onnx", "ort", "rows")  # the kernels compute in fp32


@pytest.fixture(scope="module")
def half(opened: Bundle, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    contract = dataclasses.replace(opened.manifest.contract, precision="fp16")
    return export_cached(pair.target, tmp_path_factory.mktemp("half"), HALF, contract=contract)


@pytest.mark.parametrize("dialect", HALF)
def test_fp16(dialect: Dialect, half: Exported, graphs: Exported) -> None:
    decoder = half.decoder(dialect)
    assert {array.dtype for array in decoder._caches} == {np.dtype(np.float16)}
    logits = feed(decoder, 16, 5)
    assert logits.dtype == np.float32
    expected = feed(graphs.decoder(dialect), 16, 5)
    assert 0 < np.abs(logits - expected).max() < LOGIT_TOLERANCE["fp16"] * expected.std()
    decoder.overwrite_rows(16, POISON)
    assert np.array_equal(decoder.step(TOKENS[16:21], 16), logits)
    assert sum(array.nbytes for array in decoder._caches) == half.spec.cache_bytes(half.contract)


def test_a_bundle_without_the_engines_dialect(opened: Bundle) -> None:
    target = dataclasses.replace(opened.manifest.target, graphs={"onnx": opened.manifest.target.graphs["onnx"]})
    with refused(BundleError):
        load(Bundle(opened.root, dataclasses.replace(opened.manifest, target=target)))


@pytest.mark.parametrize("content", [b"", b"no graph", None])
def test_a_broken_graph_is_one_line(content: bytes | None, bundle: Path) -> None:
    path = bundle / "graphs" / "target-kernels.onnx"
    path.write_bytes(path.read_bytes()[:-500] if content is None else content)
    with pytest.raises(EngineError, match="ONNX Runtime cannot load") as caught:
        load(open_unchecked(bundle))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def open_unchecked(bundle: Path) -> Bundle:
    return Bundle(bundle, parse(Manifest, read_json(bundle / MANIFEST), MANIFEST))


def test_weights_cut_short_are_one_line(bundle: Path) -> None:
    path = bundle / "graphs" / "target.weights"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(EngineError, match="ONNX Runtime cannot load") as caught:
        load(open_unchecked(bundle))
    assert "\n" not in str(caught.value)


def test_a_version_that_is_too_old_is_said_at_doctor_and_at_load_alike(
    opened: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "__version__", "1.22.1")
    found = availability()
    assert not found.usable
    assert "1.23" in found.remedy
    with refused(EngineError, "onnxruntime>=1.23", code="engine_unavailable"):
        load_engine(opened)
    with refused(EngineError, "onnxruntime>=1.23", code="engine_unavailable"):
        load_engine(opened, "onnxruntime")
    monkeypatch.setattr(ort, "__version__", "1.100.0")
    assert availability().usable


def test_it_is_not_available_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = availability()
    assert not found.usable
    assert "pip install 'specexport[onnxruntime]'" in found.remedy


def test_a_closed_session_frees_the_engine(compilable: Path) -> None:
    """Also while somebody still holds the session and its engine."""
    session = specexport.load(compilable, engine="onnxruntime")
    engine = session.engine
    session.generate([1, 2, 3], max_new_tokens=4)
    decoders = [engine.target, engine.draft.decoder]
    held = [
        weakref.ref(thing)
        for decoder in decoders
        for thing in (
            decoder._session,
            decoder._session._sess,
            *decoder._caches,
            *decoder._cache_values,
            *(bound.io for bound in decoder._bindings.values()),
        )
    ]
    session.close()
    gc.collect()
    assert [ref() for ref in held if ref() is not None] == []
    with pytest.raises(SessionClosedError):
        session.generate([1, 2, 3])
    engine.close()
    with refused(EngineError):
        engine.target.step([1], 0)


def test_a_bundle_in_the_hubs_cache_runs(built: Path, tmp_path: Path) -> None:
    """Graphs and weights are links into another folder, where ONNX Runtime finds neither by the other's place."""
    snapshot = in_the_hubs_layout(built, tmp_path / "models--me--pair")
    assert (snapshot / "graphs/target.weights").is_symlink()
    found = []
    for path in (built, snapshot):
        with specexport.load(path, engine="onnxruntime") as session:
            found.append(session.generate("def add", max_new_tokens=12, num_draft_tokens=4))
    assert found[0].tokens == found[1].tokens
    assert found[1].statistics.drafted > 0


def test_nothing_is_sent_and_no_device_gets_an_id(tmp_path: Path, graphs: Exported) -> None:
    code = "import sys; from pathlib import Path; from specexport.engines.onnxruntime.graphs import open_graph"
    path = next(iter(sorted(graphs.folder.rglob("*.onnx"))))
    places = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | places
    opened = subprocess.run([sys.executable, "-c", f"{code}; open_graph(Path({str(path)!r}))"], env=environment)
    assert opened.returncode == 0
    assert not list(tmp_path.rglob("*"))
