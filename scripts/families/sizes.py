"""A tiny configuration of any family, by the names that families share for sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import AutoConfig
from transformers.configuration_utils import PretrainedConfig

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, POSITIONS, VOCAB = 2, 64, 4, 2, 16, 96, 128, 96
# The value for each name that a family has. Windows are shorter than the proof's schedule.
SIZES: dict[str, Any] = (
    dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), LAYERS
    )
    | dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim", "dim_model"), HIDDEN)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS)
    | dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), HEADS)
    | dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), KV_HEADS)
    | dict.fromkeys(("head_dim", "kv_channels", "d_kv", "dim_head", "attention_head_dim", "global_head_dim"), HEAD)
    | dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim", "encoder_ffn_dim"), INNER)
    | dict.fromkeys(("n_inner", "d_ff", "dim_ff", "dff", "intermediate_size_mlp", "dense_intermediate_size"), INNER)
    | dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length"), POSITIONS
    )
    | dict.fromkeys(("initializer_range", "init_std", "initializer_factor"), 0.2)
    | dict(sliding_window=8, attention_chunk_size=POSITIONS)
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2)
    | dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"), 16)
    | dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "num_shared_experts"), 1)
    | dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16)
    | dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), HEAD)
    | dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_head_dim"), HEAD)
    | dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), HEAD)
    | dict.fromkeys(("vocab_size", "unpadded_vocab_size"), VOCAB)
    | dict(linear_num_key_heads=2, linear_num_value_heads=4, v_head_dim=4, shared_intermediate_size=16)
    | dict(pad_token_id=1, bos_token_id=0, eos_token_id=1, is_decoder=True, is_encoder_decoder=False)
)


def tiny(model_type: str) -> PretrainedConfig:
    """The family's configuration with the sizes of `SIZES`, and one layer of each type."""
    changes, given = OVERRIDES.get(model_type, {}), AutoConfig.for_model(model_type)
    return AutoConfig.for_model(model_type, **(_small(given) | changes))


def _small(given: PretrainedConfig) -> dict[str, Any]:
    """Arguments for a small configuration like `given`; nested configurations are made small too."""
    names = set(given.to_dict()) | set(given.attribute_map)
    small = {name: size for name, size in SIZES.items() if name in names}
    for name in ("sliding_window", "attention_chunk_size", "q_lora_rank"):  # names that are None in some families
        if name in small and getattr(given, name, None) is None:
            del small[name]
    if "kv_lora_rank" in names and "num_key_value_heads" in names:  # latent attention: equally many
        small["num_key_value_heads"] = HEADS
    kinds = getattr(given, "layer_types", None)
    if kinds and not isinstance(
        getattr(type(given), given.attribute_map.get("layer_types", "layer_types"), 0), property
    ):
        small["layer_types"] = one_of_each(kinds)
        small["num_hidden_layers"] = len(small["layer_types"])
    for name in given.sub_configs:
        part = getattr(given, name, None)
        if isinstance(part, PretrainedConfig):
            small[name] = _small(part) | OVERRIDES.get(part.model_type, {})
    return small


def one_of_each(kinds: Iterable[str]) -> list[str]:
    """Types of at least two layers, including every type that the family mixes."""
    found = list(dict.fromkeys(kinds))
    return found if len(found) > 1 else found * LAYERS


# One attention layer that is shared by several places.
SHARED: dict[str, Any] = dict(num_hidden_layers=4, num_key_value_heads=HEADS) | dict.fromkeys(
    ("layer_types", "layers_block_type"), ["linear_attention", "hybrid"] * 2
)
# The last layers read the rows of those of their kind before them, as in the checkpoints that are published.
ROWS: dict[str, Any] = dict(
    num_hidden_layers=4, num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2
) | dict(hidden_size_per_layer_input=HEAD, vocab_size_per_layer_input=VOCAB)
# Attention that reads the keys which an indexer of its own selects.
INDEXED: dict[str, Any] = dict(
    indexer_n_heads=HEADS, indexer_kv_heads=1, indexer_head_dim=HEAD, indexer_budget=8, indexer_compress_ratio=4
)
# Families whose sizes depend on each other in their own way.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": dict(mamba_n_heads=8, attn_layer_indices=[1]),
    "codegen": dict(rotary_dim=HEAD),
    "cohere_compass_text": dict(
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            kind: dict(rope_type="default", rope_theta=1e4) for kind in ("sliding_attention", "full_attention")
        },
    ),
    "falcon_h1": dict(mamba_n_heads=8, mamba_d_ssm=8 * HEAD),
    "gptj": dict(rotary_dim=HEAD),
    "dbrx": dict(
        attn_config=dict(kv_n_heads=KV_HEADS, rope_theta=1e4, clip_qkv=8.0),
        ffn_config=dict(ffn_hidden_size=INNER, moe_num_experts=4, moe_top_k=2),
    ),
    "gemma3n_text": ROWS,
    "gemma4_text": ROWS,
    "gemma4_unified_text": ROWS,
    "lfm2": dict(layer_types=["conv", "full_attention"]),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=8),
    "granitemoehybrid": dict(mamba_n_heads=8, layer_types=["mamba", "attention"]),
    "mamba2": dict(num_heads=8),
    "zamba": SHARED,
    "zamba2": SHARED,
    "zaya": dict(num_experts_per_tok=1),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, mamba_dt_rank=4),
    "recurrent_gemma": dict(num_hidden_layers=3),
    "qwen4_exp_text": INDEXED,
    "reformer": dict(axial_pos_embds=False, attn_layers=["local", "local"]),
    "xlnet": dict(d_head=HEAD),
    "xmod": dict(default_language="en_XX"),
}
