"""The parts of a hybrid of `synthetic_pair.py` that a Llama lacks: layers of a gated delta rule, as in Qwen3.5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, Qwen3_5TextConfig

Drawn = Callable[[torch.Tensor, float, torch.Generator], None]


@dataclass(frozen=True)
class HybridSizes:
    """Sizes of Qwen3.5-0.8B. heads, width: of keys and values of a recurrence. head_dim: of attention."""

    heads: int = 16
    width: int = 128
    head_dim: int = 256


def hybrid_config(sizes: HybridSizes, given: dict[str, Any]) -> PretrainedConfig:
    """A hybrid's configuration. given: that of a Llama of the same sizes. Every fourth layer is attention."""
    layers = given["num_hidden_layers"]
    return Qwen3_5TextConfig(
        **given,
        head_dim=sizes.head_dim,
        layer_types=["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)],
        linear_num_key_heads=sizes.heads,
        linear_num_value_heads=sizes.heads,
        linear_key_head_dim=sizes.width,
        linear_value_head_dim=sizes.width,
    )


@torch.no_grad()
def draw_recurrence(layer: torch.nn.Module, drawn: Drawn, generator: torch.Generator) -> None:
    """Draw all weights except the output's. drawn: fills a matrix. Steps are drawn as for Mamba (arXiv 2312.00752)."""
    for projection in (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_a, layer.in_proj_b):
        drawn(projection.weight, 1.0, generator)
    layer.conv1d.weight.copy_(0.5 * torch.randn(layer.conv1d.weight.shape, generator=generator))
    layer.A_log.copy_(torch.log(0.01 + 15.99 * torch.rand(layer.A_log.shape, generator=generator)))
    step = torch.exp(torch.log(torch.tensor(0.001)) * torch.rand(layer.dt_bias.shape, generator=generator)) * 0.1
    layer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
