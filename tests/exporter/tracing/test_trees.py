"""Graphs that take trees: chains as without them, bit for bit, and each row of a tree as its own sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from specexport.engines.base import Logits
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.engines.onnxruntime.trees import OrtTrees
from specexport.errors import UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.tracing.trace import probe_cache, trace
from specexport.runtime.proofs.tree_parity import measure_trees
from support.pair import Pair
from support.refusals import refused
from support.tiny import CONTRACT, DIALECTS, LLAMA, Exported, export_cached, make_tokenizer, save_model

pytestmark = pytest.mark.slow

TREES = replace(CONTRACT, tree_rows=6)
TOKENS = np.random.default_rng(0).integers(0, 288, 64).tolist()
START = 12
# Beside a chain of three: two below the last token, one of them with a child, and one below the second draft token.
CHAIN, OTHERS, PARENTS = TOKENS[START : START + 3], [5, 6, 7, 8], [0, 0, 3, 2]
PATHS = [[0], [0, 1], [0, 1, 2], [0, 3], [0, 4], [0, 3, 5], [0, 1, 2, 6]]


@pytest.fixture(scope="module")
def graphs(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    folder = tmp_path_factory.mktemp("trees")
    contracts = {"chains": CONTRACT, "trees": TREES}
    return {name: export_cached(pair.target, folder / name, contract=kept) for name, kept in contracts.items()}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A window that hides rows of the tree from each other, in the dialects that can have both."""
    folder = tmp_path_factory.mktemp("windowed")
    save_model(folder / "m", "mistral", config=LLAMA | dict(sliding_window=3))
    make_tokenizer().save_pretrained(folder / "m")
    return export_cached(folder / "m", folder / "g", dialects=("onnx", "rows"), contract=TREES)


def fed(decoder: OrtDecoder) -> OrtDecoder:
    decoder.overwrite_rows(0, 0.0)
    decoder.step(TOKENS[:START], 0)
    decoder.overwrite_rows(START, 1e4)
    return decoder


def tree(decoder: OrtDecoder) -> Logits:
    return fed(decoder).step_tree([*CHAIN, *OTHERS], PARENTS, START).copy()


def alone(checkpoint: Path, path: Sequence[int]) -> Logits:
    """What the Hugging Face model gives behind one path of the tree, without a cache."""
    rows = [*CHAIN, *OTHERS]
    model = find_checkpoint(str(checkpoint)).load("fp32")
    with torch.no_grad():
        tokens = torch.tensor([[*TOKENS[:START], *(rows[row] for row in path)]])
        found: Logits = model(input_ids=tokens, use_cache=False).logits[0, -1].numpy()
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_chain_has_the_bits_of_a_graph_without_trees(graphs: dict[str, Exported], dialect: Dialect) -> None:
    chains, trees = (graphs[name].decoder(dialect) for name in ("chains", "trees"))
    position = 0
    for width in (16, 7, 3, 1, 5, 2, 4):
        ours, theirs = (decoder.step(TOKENS[position : position + width], position) for decoder in (trees, chains))
        assert np.array_equal(ours[-len(theirs) :], theirs)
        position += width
    assert graphs["trees"].error(dialect) < 1e-4


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_row_is_its_own_sequence(graphs: dict[str, Exported], dialect: Dialect, pair: Pair) -> None:
    decoder = graphs["trees"].decoder(dialect)
    found = tree(decoder)
    wanted = np.stack([alone(pair.target, path) for path in PATHS])
    assert np.abs(found - wanted).max() < 1e-4
    # The chain's rows stay in the cache, and the next pass is a chain again.
    after = decoder.step(TOKENS[START + 3 : START + 5], START + 3).copy()
    fed(decoder).step(CHAIN, START)
    assert np.abs(after - decoder.step(TOKENS[START + 3 : START + 5], START + 3)).max() < 1e-4


@pytest.mark.parametrize("dialect", ["onnx", "rows"])
def test_a_window_counts_the_text_and_not_the_cache(windowed: Exported, dialect: Dialect) -> None:
    wanted = np.stack([alone(windowed.folder.parent / "m", path) for path in PATHS])
    assert np.abs(tree(windowed.decoder(dialect)) - wanted).max() < 1e-4


def test_a_window_that_hides_rows_is_refused_on_onnxruntime(tmp_path: Path) -> None:
    def traced(window: int) -> None:
        model = find_checkpoint(str(save_checkpoint_of(window))).load("fp32")
        trace(model, probe_cache(model), "ort", TREES)

    def save_checkpoint_of(window: int) -> Path:
        folder = save_model(tmp_path / str(window), "mistral", config=LLAMA | dict(sliding_window=window))
        make_tokenizer().save_pretrained(folder)
        return folder

    with refused(UnsupportedModelError, "--tree-rows", "16"):
        traced(16)
    traced(TREES.capacity)  # hides nothing


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_proof_of_a_build(graphs: dict[str, Exported], dialect: Dialect) -> None:
    exported = graphs["trees"]
    proof = measure_trees(exported.decoder(dialect), exported.reference, TREES, ("onnxruntime", dialect), "fp32")
    assert proof.passed
    assert proof.rows >= TREES.widest_step
    assert proof.length > TREES.widest_step


def rows_in_front(self: OrtTrees, width: int, parents: Sequence[int]) -> Iterator[None]:
    """Every row behind the chain sees those of them in front of it, its siblings too."""
    with as_tree(self, width, parents):
        ancestor, chain = self._by_width[width][1], width - len(parents)
        ancestor[chain:, chain:] = np.tri(len(parents), dtype=np.bool_)
        yield


as_tree = OrtTrees.as_tree


def test_siblings_that_see_each_other_fail_the_proof(
    graphs: dict[str, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OrtTrees, "as_tree", contextmanager(rows_in_front))
    exported = graphs["trees"]
    proof = measure_trees(exported.decoder("ort"), exported.reference, TREES, ("onnxruntime", "ort"), "fp32")
    assert not proof.passed
