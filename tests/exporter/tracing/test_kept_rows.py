"""Layers after the last cache compute only the rows of a pass whose logits are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE
from support.tiny import CONTRACT, LLAMA, VOCAB, export_cached, make_tokenizer, save_model

pytest.importorskip("specexport_kernels")

KINDS = ["sliding_attention", "full_attention"]
# The last layers read the rows of those of their kind before them.
SHARED: dict[str, Any] = dict(
    num_hidden_layers=4, num_kv_shared_layers=2, layer_types=KINDS * 2, sliding_window=8, head_dim=16
)
SHARED |= dict(global_head_dim=16, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB)
TOKENS = np.random.default_rng(0).integers(2, VOCAB, CONTRACT.prompt_chunk).tolist()


@pytest.mark.parametrize("family", [pytest.param("gemma3n_text", marks=pytest.mark.slow), "gemma4_text"])
def test_layers_that_read_the_rows_of_others(family: str, tmp_path: Path) -> None:
    """They stand at the first kept row, and their logits are of the row, in a chunk as in a step."""
    save_model(tmp_path / "m", family, config=LLAMA | SHARED)
    make_tokenizer().save_pretrained(tmp_path / "m")
    exported = export_cached(tmp_path / "m", tmp_path / "g", ("kernels",))
    graph = ir.load(exported.folder / exported.spec.graphs["kernels"]).graph
    attention = [node for node in graph if node.op_type == "Attention"]
    at = [node.inputs[3].name for node in attention if node.inputs[3] is not None]
    assert at[:2] == ["position"] * 2
    assert "position" not in at[2:]
    assert len(set(at)) == 2
    assert all(node.inputs[6] is not None for node in attention), "angles of kept rows are those of the tables"
    assert exported.error("kernels") <= LOGIT_TOLERANCE["fp32"] / 10
    decoder = exported.decoder("kernels")
    chunk = decoder.step(TOKENS, 0).copy()
    assert len(chunk) == 1
    assert np.array_equal(chunk[0], decoder.step(TOKENS[-3:], len(TOKENS) - 3)[-1])
