"""Drafts that read the target's hidden states on the CUDA engine's decoders: the CPU provider stands for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from specexport.bundle import Bundle, Contract
from specexport.engines.base import Engine, OpenedDraft
from specexport.engines.onnxruntime.cpu import DecoderOptions, OrtDecoder
from specexport.engines.onnxruntime.cuda_decoder import OrtCudaDecoder, OrtDevice
from specexport.engines.onnxruntime.graphs import open_graph
from specexport.runtime.session import Session
from support.capturing_onnxruntime import Capturing
from support.micro import VOCAB
from support.micro_hidden import FUSE, GIVEN, KEPT, hidden_bundle

CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
TOKENS: list[int] = np.random.default_rng(11).integers(0, VOCAB, 64).tolist()


def without_columns(path: Path) -> Path:
    """As the graphs of ONNX Runtime are, which attend to what they need."""
    model = onnx.load(path)
    (columns,) = (value for value in model.graph.input if value.name == "columns")
    model.graph.input.remove(columns)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(CONTRACT.capacity), "columns"))
    onnx.save(model, path)
    return path


class Pairs:
    def __init__(self, root: Path, kept: list[int] | None) -> None:
        self.bundle: Bundle = hidden_bundle(root, CONTRACT, kept, noise=0.02)
        manifest = self.bundle.manifest
        self.specs = manifest.target, manifest.drafts[0].model
        self.paths = [without_columns(self.bundle.path(spec.graphs["onnx"])) for spec in self.specs]
        self.runtime = Capturing()
        self.on_device = [self._on_device(*one) for one in zip(self.paths, self.specs, (False, True), strict=True)]
        self.on_host = [
            OrtDecoder(path, spec, CONTRACT, "ort", DecoderOptions(fuse=self._fuse() if spec.reads else None))
            for path, spec in zip(self.paths, self.specs, strict=True)
        ]

    def _fuse(self) -> Any:
        return open_graph(self.bundle.path(FUSE), 1)

    def _on_device(self, path: Path, spec: Any, drafts: bool) -> OrtCudaDecoder:
        fuse = self._fuse() if drafts else None
        session = self.runtime.session(path)
        return OrtCudaDecoder(self.runtime, session, OrtDevice("cpu", 0), path, spec, CONTRACT, drafts, fuse)

    def session(self, pair: list[Any]) -> Session:
        target, draft = pair
        engine = Engine("test", "ort", target, OpenedDraft(draft, reader=draft.reader), taps=target.taps)
        return Session(self.bundle, engine, policy=False)


@pytest.fixture(scope="module", params=[None, KEPT], ids=["every id", "a cut vocabulary"])
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("bundle"), request.param)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_tokens_and_cache_rows_of_the_cpu_engine(pairs: Pairs, k: int, options: dict[str, Any]) -> None:
    sessions = [pairs.session(pair) for pair in (pairs.on_device, pairs.on_host)]
    head = pairs.bundle.manifest.first_draft
    accepted = 0
    for length in (2, 3, 16, 17, 40, 52):
        for drafter in (head, f"ngram+{head}"):
            asked: dict[str, Any] = {"num_draft_tokens": k, "max_new_tokens": 12, "stop_token_ids": (), **options}
            streams = (session.stream(TOKENS[:length], drafter=drafter, **asked) for session in sessions)
            for ours, theirs in zip(*streams, strict=True):
                assert (ours.tokens, ours.draft_tokens) == (theirs.tokens, theirs.draft_tokens)
                rows = sessions[0]._context.drafts[head].rows
                assert rows == sessions[1]._context.drafts[head].rows
                same_rows(pairs, 1, rows + max(0, ours.sources.count("model") - 1))
            accepted += ours.statistics.accepted
    assert accepted > 12 * k // 2


def same_rows(pairs: Pairs, which: int, rows: int) -> None:
    found = (pair[which].read_rows(rows) for pair in (pairs.on_device, pairs.on_host))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(("count", "position"), [(1, 0), (5, 20), (6, 20), (16, 16), (9, 55), (16, 48)])
@pytest.mark.parametrize("how", ["step", "feed"])
def test_hidden_states_of_any_number_of_tokens(pairs: Pairs, how: str, count: int, position: int) -> None:
    """A wide step is two passes; next to the capacity a prompt chunk is several narrow ones."""
    for target, draft in (pairs.on_host, pairs.on_device):
        for place in range(0, position, 4):
            part = TOKENS[place : min(place + 4, position)]
            target.feed(part, place)
            draft.reader.read(target.taps())  # type: ignore[union-attr]
            draft.feed(TOKENS[place + 1 : place + 1 + len(part)], place)
        getattr(target, how)(TOKENS[position : position + count], position)
        if count > 1:
            draft.reader.read(target.taps()[:-1])  # type: ignore[union-attr]
            getattr(draft, how)(TOKENS[position + 1 : position + count], position)
    ours, theirs = (pair[0].taps() for pair in (pairs.on_device, pairs.on_host))  # type: ignore[misc]
    assert ours.shape == (count, GIVEN)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    same_rows(pairs, 1, position + count - 1)


def test_padding_is_of_numbers_whatever_was_there(pairs: Pairs) -> None:
    draft = pairs.on_device[1]
    assert draft.reader is not None
    for hidden in (np.full((16, GIVEN), np.nan, np.float32), np.zeros((6, GIVEN), np.float32)):
        draft.reader.read(hidden)
        draft.feed(TOKENS[: len(hidden)], 0)
    assert all(np.isfinite(rows).all() for rows in draft.read_rows(16))


def test_passes_are_replayed(pairs: Pairs) -> None:
    """What a pass reads and gives back lies in the buffers that were captured."""
    pairs.runtime.runs.clear()
    session = pairs.session(pairs.on_device)
    session.generate(TOKENS[:20], num_draft_tokens=3, max_new_tokens=9, stop_token_ids=())
    assert {kind for kind, _ in pairs.runtime.runs} == {"replayed"}


def test_a_closed_decoder_holds_nothing(tmp_path: Path) -> None:
    made = Pairs(tmp_path / "b", None)
    for decoder in made.on_device:
        decoder.close()
        assert decoder.taps is decoder.reader is None
