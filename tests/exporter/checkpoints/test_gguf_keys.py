"""Every key of a GGUF header is read, known to change nothing, or refused by its name.

The logits are compared with those of the checkpoint that the file was made from, which transformers' loader of GGUF has
not seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.errors import CheckpointError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from support import gguf_files
from support.refusals import refused

TOKENS = torch.tensor([[5, 6, 7, 8, 9, 250, 11, 3] * 6])
SIZES = dict(vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)
SHAPE = {"context_length": 64, "embedding_length": 32, "feed_forward_length": 48, "attention.head_count": 4}
SHAPE |= {"attention.head_count_kv": 2}


BASE, EPSILON = 50.0, 2.0**-6
RMS = {"rope.freq_base": BASE, "attention.layer_norm_rms_epsilon": EPSILON}
NORM = {"rope.freq_base": BASE, "attention.layer_norm_epsilon": EPSILON}
GEMMA = SIZES | dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=16, rms_norm_eps=EPSILON)
MOE = SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, rms_norm_eps=EPSILON)
EXPERTS = RMS | {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}
HEAD = {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 8}


def rope(theta: float = BASE, **more: Any) -> dict[str, Any]:
    return dict(rope_parameters=dict(rope_theta=theta, rope_type="default") | more)


YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=2.0)
# Of each: transformers' name and config, and what the file says.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "starcoder2, a key for each head": (
        "starcoder2",
        "starcoder2",
        SIZES | rope(10000.0) | dict(num_key_value_heads=4, norm_epsilon=EPSILON, tie_word_embeddings=True),
        {key: value for key, value in (SHAPE | NORM).items() if not key.endswith(("_kv", "freq_base"))},
    ),
    "qwen2, yarn": (
        "qwen2",
        "qwen2",
        SIZES | rope(**YARN) | dict(rms_norm_eps=EPSILON),
        SHAPE
        | RMS
        | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
        | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0},
    ),
    "qwen2, linear by its old name": (
        "qwen2",
        "qwen2",
        SIZES | rope(rope_type="linear", factor=4.0) | dict(rms_norm_eps=EPSILON),
        SHAPE | RMS | {"rope.scale_linear": 4.0},
    ),
    "qwen3, a head wider than its share": (
        "qwen3",
        "qwen3",
        SIZES | rope() | dict(head_dim=16, rms_norm_eps=EPSILON),
        SHAPE | RMS | {"attention.key_length": 16, "attention.value_length": 16},
    ),
    "phi3, partial rotary and a window": (
        "phi3",
        "phi3",
        SIZES | rope(partial_rotary_factor=0.5) | dict(rms_norm_eps=EPSILON, sliding_window=8),
        SHAPE
        | RMS
        | {"rope.dimension_count": 4, "attention.sliding_window": 8, "rope.scaling.original_context_length": 64},
    ),
    "nemotron, partial rotary": (
        "nemotron",
        "nemotron",
        SIZES | rope(partial_rotary_factor=0.5) | dict(norm_eps=EPSILON),
        SHAPE | NORM | {"rope.dimension_count": 4},
    ),
    "qwen2moe": (
        "qwen2_moe",
        "qwen2moe",
        MOE | rope() | dict(shared_expert_intermediate_size=40),
        SHAPE | EXPERTS | {"expert_shared_feed_forward_length": 40},
    ),
    "qwen3moe, whose config does not declare the width of a head": (
        "qwen3_moe",
        "qwen3moe",
        MOE | rope() | dict(head_dim=16, norm_topk_prob=True),
        SHAPE | EXPERTS | {"attention.key_length": 16, "attention.value_length": 16},
    ),
    "gpt2": (
        "gpt2",
        "gpt2",
        dict(vocab_size=288, n_positions=64, n_embd=32, n_layer=2, n_head=4, n_inner=48, layer_norm_epsilon=EPSILON)
        | dict(initializer_range=0.2),
        {key: value for key, value in SHAPE.items() if not key.endswith("_kv")}
        | {"attention.layer_norm_epsilon": EPSILON},
    ),
    "gemma2": (
        "gemma2",
        "gemma2",
        GEMMA | rope() | dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
        SHAPE | RMS | HEAD | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3, two bases": (
        "gemma3_text",
        "gemma3",
        GEMMA
        | dict(layer_types=["full_attention", "sliding_attention"])
        | dict(
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=BASE),
                sliding_attention=dict(rope_type="default", rope_theta=20.0),
            )
        ),
        SHAPE
        | RMS
        | HEAD
        | {"rope.freq_base_swa": 20.0, "rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
        | {"attention.sliding_window_pattern": [False, True]},
    ),
    "gemma3, no window": (
        "gemma3_text",
        "gemma3",
        GEMMA
        | dict(layer_types=["full_attention"] * 2)
        | dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=BASE))),
        SHAPE | RMS | {key: value for key, value in HEAD.items() if not key.endswith("window")},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_one_that_the_file_was_made_from(case: str, tmp_path: Path) -> None:
    model_type, architecture, config, keys = CASES[case]
    folder = gguf_files.save(tmp_path / "checkpoint", model_type, config)
    file = gguf_files.write(folder, tmp_path / "a.gguf", architecture, keys)
    with torch.no_grad():
        ours, theirs = (find_checkpoint(str(path)).load("fp32")(TOKENS).logits for path in (file, folder))
    assert torch.allclose(ours, theirs, atol=1e-4), float((ours - theirs).abs().max())


WITHOUT_EFFECT = {
    "general.license": "apache-2.0",
    "general.quantization_version": 2,
    "tokenizer.ggml.token_type_count": 1,
    "tokenizer.ggml.fim_pre_token_id": 5,
    "tokenizer.ggml.add_space_prefix": False,
    "tensor_data_layout": "Meta AI original pth",
    "expert_count": 0,
    "attention.causal": True,
    "rope.scaling.finetuned": False,
    "attention.value_length": 8,
}
REFUSED = {
    "a key that nobody knows": {"attention.sinks": 4},
    "experts that Qwen2 does not have": {"expert_count": 8},
    "a window that Qwen2's layers do not have": {"attention.sliding_window": 8},
    "values of another length": {"attention.value_length": 4},
    "a model that is not causal": {"attention.causal": False},
    "part of each key rotated": {"rope.dimension_count": 4},
    "a base of its own for windows": {"rope.freq_base_swa": 20.0},
    "positions scaled by a tensor": {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0},
    "yarn that attends otherwise": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.yarn_attn_factor": 2.0,
    },
    "attention stretched": {"rope.scaling.attn_factor": 1.19},
    "tokens that are never given": {"tokenizer.ggml.suppress_tokens": [5, 6]},
    "no norm's epsilon": {"attention.layer_norm_rms_epsilon": None},
    "no heads": {"attention.head_count": 0},
    "a LoRA": {"general.type": "adapter"},
}


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.save(tmp_path_factory.mktemp("qwen2"), "qwen2", SIZES | rope())


def test_keys_that_change_nothing(qwen2: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(
        str(gguf_files.write(qwen2, tmp_path / "a.gguf", "qwen2", SHAPE | RMS | WITHOUT_EFFECT))
    )
    assert checkpoint.config.rope_parameters["rope_theta"] == BASE
    assert checkpoint.warnings == ()


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_is_not_read(case: str, qwen2: Path, tmp_path: Path) -> None:
    file = gguf_files.write(qwen2, tmp_path / "a.gguf", "qwen2", SHAPE | RMS | REFUSED[case])
    with refused(
        UnsupportedModelError,
        field=(None, *REFUSED[case], *(f"qwen2.{name}" for name in REFUSED[case])),
    ):
        _ = find_checkpoint(str(file)).config


def test_keys_of_an_architecture_that_transformers_has_a_function_for(tmp_path: Path) -> None:
    config = SIZES | rope() | dict(norm_eps=EPSILON, block_auto_adjust_ff_dim=False, conv_L_cache=3)
    config |= dict(layer_types=["conv", "full_attention"])
    folder = gguf_files.save(tmp_path / "lfm2", "lfm2", config)
    keys = SHAPE | RMS | {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3, "vocab_size": 288}
    checkpoint = find_checkpoint(str(gguf_files.write(folder, tmp_path / "a.gguf", "lfm2", keys)))
    assert checkpoint.config.layer_types == config["layer_types"]
    file = gguf_files.write(folder, tmp_path / "b.gguf", "lfm2", keys | {"attention.sinks": 4})
    with refused(UnsupportedModelError, field="lfm2.attention.sinks"):
        _ = find_checkpoint(str(file)).config


def test_a_model_of_layers_that_differ(qwen2: Path, tmp_path: Path) -> None:
    file = gguf_files.write(qwen2, tmp_path / "a.gguf", "gemma4", SHAPE | RMS)
    with refused(UnsupportedModelError):
        _ = find_checkpoint(str(file)).config


def test_weights_of_another_shape_are_named(qwen2: Path, tmp_path: Path) -> None:
    file = gguf_files.write(qwen2, tmp_path / "a.gguf", "qwen2", SHAPE | RMS | {"attention.head_count": 8})
    with refused(CheckpointError):
        find_checkpoint(str(file)).load("fp32")
