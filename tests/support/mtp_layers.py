"""Tiny random targets with MTP layers, in the names of their families."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.tiny import save_model

WIDTH, VOCAB = 32, 96
PLAIN: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    initializer_range=0.2,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)
LINEAR = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    num_hidden_layers=2,
)
LINEAR |= dict(layer_types=["full_attention", "linear_attention"])
EXPERTS = dict(moe_intermediate_size=16, num_experts_per_tok=2)
QWEN_EXPERTS = EXPERTS | dict(num_experts=4, shared_expert_intermediate_size=16)
ROUTED = EXPERTS | dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)
LATENT = dict(
    num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8
)
MAMBA = dict(ssm_state_size=8, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, conv_kernel=4, chunk_size=8)
MAMBA |= dict(layers_block_type=["linear_attention", "full_attention", "moe"])


@dataclass(frozen=True)
class Family:
    """model_type and config of the target. like: which of its layers the block's are alike. layer: where the tensors of
    the block are. parts: of enorm, hnorm, the projection and the last norm. one_plus: norms multiply with 1 + w.
    """

    model_type: str
    config: dict[str, Any]
    like: tuple[int, ...]
    layer: str
    parts: tuple[str, ...]
    one_plus: bool = False
    hidden_first: bool = False


QWEN = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
DEEPSEEK = tuple(f"model.layers.3.{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
NEMOTRON = ("0.enorm", "0.hnorm", "0.eh_proj", "1.final_layernorm")
FAMILIES = {
    "Qwen3.5": Family("qwen3_5_text", PLAIN | LINEAR, (0,), "mtp.layers.", QWEN, one_plus=True),
    "Qwen3.5 MoE": Family("qwen3_5_moe_text", PLAIN | LINEAR | QWEN_EXPERTS, (0,), "mtp.layers.", QWEN, one_plus=True),
    "Qwen3-Next": Family("qwen3_next", PLAIN | LINEAR | QWEN_EXPERTS, (0,), "mtp.layers.", QWEN, one_plus=True),
    "DeepSeek-V3": Family("deepseek_v3", PLAIN | ROUTED | LATENT, (2,), "model.layers.", DEEPSEEK),
    "GLM-4.5": Family("glm4_moe", PLAIN | ROUTED, (2,), "model.layers.", DEEPSEEK),
    "MiMo": Family(
        "qwen2",
        PLAIN,
        (2,),
        "model.mtp_layers.",
        tuple(f"model.mtp_layers.0.{name}" for name in MIMO),
        hidden_first=True,
    ),
    # whose block is dense, and ends in the model's own norm
    "ERNIE": Family(
        "ernie4_5_moe",
        PLAIN | EXPERTS | dict(moe_num_experts=4, moe_k=2, moe_layer_start_index=1),
        (0,),
        "model.mtp_block.",
        ("model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.mtp_linear_proj.0", "model.norm"),
    ),
    "Nemotron-H": Family(
        "nemotron_h",
        PLAIN
        | MAMBA
        | EXPERTS
        | dict(layers_block_type=["linear_attention", "full_attention", "moe"], n_routed_experts=4),
        (1, 2),
        "mtp.layers.",
        tuple(f"mtp.layers.{name}" for name in NEMOTRON),
    ),
}


def add_layer(folder: Path, family: Family) -> dict[str, Tensor]:
    """Give the target in `folder` a random MTP layer; and its tensors by the names of the target's own layers."""
    torch.manual_seed(1)
    path = folder / "model.safetensors"
    weights, block, layer = load_file(path), {}, {}
    first = family.config["num_hidden_layers"] if family.layer == "model.layers." else 0
    for number, index in enumerate(family.like):
        for name in [name for name in weights if f"layers.{index}." in name]:
            new = weights[name] + 0.3 * torch.randn_like(weights[name].float())
            rest = name.partition(f"layers.{index}.")[2]
            block[name], layer[f"{family.layer}{first + number}.{rest}"] = new, new
    enorm, hnorm, projection, norm = (f"{name}.weight" for name in family.parts)
    layer |= {name: torch.rand(WIDTH) + 0.5 for name in (enorm, hnorm, norm)}
    layer[projection] = 0.2 * torch.randn(WIDTH, 2 * WIDTH)
    if "shared_head.norm" in norm:  # the target's, stored again
        again = norm.removesuffix("shared_head.norm.weight")
        layer |= {
            f"{again}{name}.weight": torch.zeros(family.config["vocab_size"], WIDTH)
            for name in ("embed_tokens", "shared_head.head")
        }
    save_file(weights | layer, path, {"format": "pt"})
    return block


def saved(family: Family, folder: Path) -> tuple[Path, dict[str, Tensor]]:
    save_model(folder, family.model_type, config=family.config)
    return folder, add_layer(folder, family)
