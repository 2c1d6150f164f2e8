"""Layers after the last cache compute only the rows of a pass whose logits are wanted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from specexport.bundle import Contract
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE
from support.tiny import CONTRACT, LLAMA, VOCAB, Exported, export_cached, make_tokenizer, save_model

pytest.importorskip("specexport_kernels")

KINDS = ["sliding_attention", "full_attention"]
# The last layers read the rows of those of their kind before them.
SHARED: dict[str, Any] = dict(
    num_hidden_layers=4, num_kv_shared_layers=2, layer_types=KINDS * 2, sliding_window=8, head_dim=16
)
SHARED |= dict(global_head_dim=16, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB)
TOKENS = np.random.default_rng(0).integers(2, VOCAB, CONTRACT.prompt_chunk).tolist()


def export(family: str, contract: Contract, folder: Path) -> tuple[Exported, list[ir.Node]]:
    """With the attention of its layers."""
    save_model(folder / "m", family, config=LLAMA | SHARED)
    make_tokenizer().save_pretrained(folder / "m")
    exported = export_cached(folder / "m", folder / "g", ("kernels",), contract)
    graph = ir.load(exported.folder / exported.spec.graphs["kernels"]).graph
    return exported, [node for node in graph if node.op_type == "Attention"]


def positions(attention: list[ir.Node]) -> list[str | None]:
    """Names of the values that say where a layer's rows begin."""
    return [node.inputs[3].name for node in attention if node.inputs[3] is not None]


@pytest.mark.parametrize("family", [pytest.param("gemma3n_text", marks=pytest.mark.slow), "gemma4_text"])
def test_layers_that_read_the_rows_of_others(family: str, tmp_path: Path) -> None:
    """They stand at the first kept row, and their logits are of the row, in a chunk as in a step."""
    exported, attention = export(family, CONTRACT, tmp_path)
    at = positions(attention)
    assert at[:2] == ["position"] * 2
    assert "position" not in at[2:]
    assert len(set(at)) == 2
    assert all(node.inputs[6] is not None for node in attention), "angles of kept rows are those of the tables"
    assert exported.error("kernels") <= LOGIT_TOLERANCE["fp32"] / 10
    decoder = exported.decoder("kernels")
    chunk = decoder.step(TOKENS, 0).copy()
    assert len(chunk) == 1
    assert np.array_equal(chunk[0], decoder.step(TOKENS[-3:], len(TOKENS) - 3)[-1])


@pytest.mark.slow
def test_all_rows_of_trees_are_computed(tmp_path: Path) -> None:
    _, attention = export("gemma4_text", replace(CONTRACT, tree_rows=6), tmp_path)
    assert positions(attention) == ["position"] * 4
