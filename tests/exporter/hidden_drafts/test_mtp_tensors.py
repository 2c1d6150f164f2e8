"""Which tensors are an MTP layer, by names alone; `test_mtp.py` has the families."""

from __future__ import annotations

from pathlib import Path

from specexport.exporter.hidden_drafts.mtp_tensors import find_stored

LAYER = {"enorm": [4], "hnorm": [4], "eh_proj": [4, 8], "shared_head.norm": [4], "mlp.up_proj": [6, 4]}


def test_layers_before_the_last_of_the_model_are_none() -> None:
    """A tower of other inputs may have parts of such names."""
    names = {f"model.layers.3.{name}.weight": shape for name, shape in LAYER.items()}
    tower = {"visual.layers.2.fc.weight": [4, 8], "visual.layers.2.enorm.weight": [4]}
    stored = {name: (Path("file"), shape) for name, shape in (names | tower).items()}
    found = find_stored("target", stored, 3, 4)
    assert found.parts["eh_proj"] == "model.layers.3.eh_proj.weight"
    assert found.block == {"layers.0.mlp.up_proj.weight": "model.layers.3.mlp.up_proj.weight"}
    assert (found.layers, found.elements) == (1, 4 + 4 + 32 + 4 + 24)
