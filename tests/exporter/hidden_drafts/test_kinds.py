"""What a folder holds: an EAGLE-3 draft, one of a kind that is not built, or a model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.errors import CheckpointError, UnsupportedModelError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.hidden_drafts.kinds import recognize
from support.hidden_drafts import SIZES, save_original, save_target
from support.refusals import refused


@pytest.mark.parametrize(
    ("config", "more", "says"),
    [
        (dict(speculators_model_type="dflash2"), (), "DFlash 2"),
        (dict(architectures=["DFlash2DraftModel"], dflash_config=dict(mask_token_id=5)), (), "DFlash 2"),
        (dict(architectures=["DominoDraftModel"]), (), "Domino"),
        (dict(architectures=["DFlashDraftModel"], dflash_config=dict(projector_type="domino")), (), "Domino"),
        (dict(architectures=["QwenDFlareDraftModel"], dflash_config=dict(mask_token_id=5)), (), "DFlare"),
        (dict(speculators_model_type="peagle"), (), "P-EAGLE"),
        (dict(architectures=["LlamaForCausalLMEagle3"], ptd_token_id=7, draft_vocab_size=64), (), "P-EAGLE"),
        (dict(architectures=["PEagleDraftModel"]), (), "P-EAGLE"),
        (dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=64), ("mask_hidden",), "P-EAGLE"),
        (dict(medusa_num_heads=2, medusa_num_layers=1), (), "Medusa"),
        (dict(architectures=["MedusaModel"]), (), "Medusa"),
        (dict(architectures=["Eagle3DeepseekV2ForCausalLM"]), (), "latent attention"),
        (dict(architectures=["Gemma4Eagle3Model"]), (), "Gemma"),
        (dict(speculators_model_type="mtp"), (), "--draft mtp"),
        (dict(speculators_model_type="xpress"), (), "XPress"),
        (dict(speculators_model_type="later"), (), "later"),
        (dict(architectures=["LlamaForCausalLMEagle"]), ("fc.weight", "layers.0.mlp.up_proj.weight"), "version 1 or 2"),
    ],
)
def test_other_kinds_are_refused_by_name(config: dict[str, Any], more: tuple[str, ...], says: str) -> None:
    with refused(UnsupportedModelError, "some/draft", says, field="draft"):
        recognize("some/draft", SIZES | config, more or ("fc.weight", "hidden_norm.weight"))


@pytest.mark.parametrize(
    ("config", "format"),
    [
        (dict(architectures=["DFlashDraftModel"], auto_map={"AutoModel": "dflash.DFlashDraftModel"}), "zlab"),
        (dict(dflash_config=dict(mask_token_id=5, target_layer_ids=[1, 2]), block_size=16), "zlab"),
        (dict(dflash_config=dict(projector_type="dspark")), "zlab"),
        (dict(architectures=["Qwen3DSparkModel"], markov_rank=8), "deepspec-blocks"),
        (dict(speculators_model_type="dflash"), "speculators-blocks"),
        (dict(speculators_model_type="dspark"), "speculators-blocks"),
    ],
)
def test_drafts_of_blocks(config: dict[str, Any], format: str) -> None:
    assert recognize("some/draft", SIZES | config, ("fc.weight", "hidden_norm.weight")) == format


def test_a_model_of_its_own_is_left_alone(tmp_path: Path) -> None:
    target = find_checkpoint(str(save_target(tmp_path / "target")))
    draft = find_draft(str(save_target(tmp_path / "draft", num_hidden_layers=1)), target)
    assert type(draft) is Checkpoint
    assert recognize("llama", dict(architectures=["LlamaForCausalLM"]), ("model.layers.0.mlp.up_proj.weight",)) is None


def test_an_original_head_is_told_by_its_tensors() -> None:
    config = dict(architectures=["LlamaForCausalLM"])
    assert recognize("head", config, ("fc.weight", "midlayer.hidden_norm.weight")) == "original"
    assert recognize("head", config, ("fc.weight", "layers.0.hidden_norm.weight")) == "modelopt"


@pytest.mark.parametrize(
    ("changes", "name", "says"),
    [
        ({}, "pytorch_model.bin", ("pickled", "pytorch_model.bin", "model.safetensors")),
        (dict(medusa_num_heads=2), "medusa_lm_head.pt", ("Medusa",)),
    ],
)
def test_pickled_weights(changes: dict[str, Any], name: str, says: tuple[str, ...], tmp_path: Path) -> None:
    target = find_checkpoint(str(save_target(tmp_path / "target")))
    folder = save_original(tmp_path / "draft", **changes)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / name)
    with refused(CheckpointError, folder, *says, code={"invalid_checkpoint", "unsupported_model"}, field="draft"):
        find_draft(str(folder), target)


@pytest.mark.parametrize("kept", [0, 40, 3000])
def test_truncated_weights(kept: int, tmp_path: Path) -> None:
    target = find_checkpoint(str(save_target(tmp_path / "target")))
    path = save_original(tmp_path / "draft") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with refused(CheckpointError, path):
        find_draft(str(path.parent), target)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_config_that_is_none(text: str, tmp_path: Path) -> None:
    target = find_checkpoint(str(save_target(tmp_path / "target")))
    folder = save_original(tmp_path / "draft")
    (folder / "config.json").write_text(text)
    with refused(CheckpointError, folder, "config.json", field="draft"):
        find_draft(str(folder), target)
