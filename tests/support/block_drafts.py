"""DFlash and DSpark drafts on disk, as `speculators` wrote them and in the formats of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.hidden_drafts import save, save_target

RECORDED = np.load(Path(__file__).parents[1] / "exporter/hidden_drafts/blocks.npz")
FORMS = {form["name"]: (place, form) for place, form in enumerate(json.loads(RECORDED["forms"].tobytes()))}


def save_block_target(folder: Path) -> Path:
    return save_target(folder, hidden_size=16, num_attention_heads=4, head_dim=8)


def tensors_of(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(RECORDED[f"weight {stored}"]) for key, stored in FORMS[name][1]["tensors"].items()}


def save_block(folder: Path, name: str, **changes: Any) -> Path:
    """As speculators saved it, with `changes` of its config; None leaves a key out."""
    config = FORMS[name][1]["config"] | changes
    return save(folder, {key: value for key, value in config.items() if value is not None}, tensors_of(name))


def flat(name: str, **changes: Any) -> dict[str, Any]:
    """The config in the form of z-lab and DeepSpec, whose ids of layers are one smaller."""
    config = FORMS[name][1]["config"]
    layer = {key: value for key, value in config["transformer_layer_config"].items() if value is not None}
    kept = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
    ids = [tap - 1 for tap in config["aux_hidden_state_layer_ids"]]
    own = {key: config[key] for key in kept if key in config}
    own |= dict(block_size=config["block_size"], mask_token_id=config["mask_token_id"], target_layer_ids=ids)
    return layer | own | dict(draft_vocab_size=config["draft_vocab_size"], num_target_layers=8) | changes
