"""Tiny random models of several families, with channels that stand out as those of large models do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

torch.set_num_threads(1)

LLAMA: dict[str, Any] = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)
GPT2: dict[str, Any] = dict(
    vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2, bos_token_id=0
)
OPT: dict[str, Any] = dict(
    vocab_size=96,
    hidden_size=32,
    word_embed_proj_dim=32,
    ffn_dim=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    init_std=0.2,
)
FAMILIES: dict[str, dict[str, Any]] = dict(
    llama=LLAMA,
    qwen3=LLAMA | dict(head_dim=8, num_hidden_layers=1),
    gemma=LLAMA | dict(head_dim=8, num_hidden_layers=1),
    gemma4_text=LLAMA | dict(head_dim=8, global_head_dim=8, layer_types=2 * ["full_attention"]),
    gpt2=GPT2,
    phi3=LLAMA | dict(num_hidden_layers=1),
    opt=OPT | dict(max_position_embeddings=64, num_hidden_layers=1),
    cohere=LLAMA | dict(num_hidden_layers=1),
    mixtral=LLAMA | dict(num_local_experts=4, num_experts_per_tok=2),
    olmoe=LLAMA | dict(num_experts=4, num_experts_per_tok=2),
    qwen3_moe=LLAMA | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
)


@pytest.fixture(scope="session")
def make() -> Callable[..., PreTrainedModel]:
    def made(family: str = "llama", **changes: Any) -> PreTrainedModel:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family] | changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
                    parameter[5] *= 12
                else:
                    parameter *= torch.exp(0.7 * torch.randn(parameter.shape[-1]))
        return model

    return made


@pytest.fixture(scope="session")
def batches() -> list[Tensor]:
    return list(torch.randint(2, 96, (4, 1, 24), generator=torch.Generator().manual_seed(1)))
