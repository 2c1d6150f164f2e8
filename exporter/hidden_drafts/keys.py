"""Keys of a draft's config.json: what is read in each format, what changes nothing, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from transformers import GenerationConfig, LlamaConfig, PreTrainedConfig, Qwen3Config

from ...errors import UnsupportedModelError
from ..checkpoints.source import first_line
from .fit import BLOCK_IDS, BLOCK_INNER, DEEPSPEC_IDS, IDS, INNER, LAYER, Published

# Of the layers, as transformers' configs have them.
LAYERS = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
LAYERS |= {"head_dim", "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings"}
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
ROTARY = {"rope_theta", "rope_scaling", "rope_parameters"}
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm")
HEAD = {*FLAGS, IDS, "norm_output", "target_hidden_size", "draft_vocab_size"}
FLAT = HEAD | LAYERS | ROTARY | {INNER}
READ: dict[str, set[str]] = {
    "original": FLAT,
    "modelopt": FLAT,
    "deepspec": LAYERS | ROTARY | {DEEPSPEC_IDS, "num_target_layers", "target_model_name_or_path"},
    "speculators": HEAD | {"speculators_model_type", "speculators_config", LAYER},
}
# Of DFlash and DSpark, where the same keys may also stand in an object of their own.
BLOCK = {"block_size", "mask_token_id", "sample_from_anchor", "markov_rank", "markov_head_type"}
BLOCK |= {"enable_confidence_head", "confidence_head_with_markov", "sliding_window_non_causal", "draft_vocab_size"}
BLOCK |= {"num_target_layers", "shift_label", "is_causal", "causal", "use_swa", "swa_window_size"}
BLOCK |= {"final_logit_softcapping"}
WINDOWS = {"layer_types", "sliding_window", "use_sliding_window", "max_window_layers"}
BLOCK_HARMLESS = {"num_anchors", "projector_type", "confidence_head_alpha", "loss_decay_gamma", "ce_loss_alpha"}
BLOCK_HARMLESS |= {"attention_sink_bias", "l1_loss_alpha", "target_hidden_size", "use_confidence_head"}
# Keys of which one value is built.
EXPECTED: dict[str, Any] = dict(use_sliding_window=False, is_encoder_decoder=False)
EXPECTED |= dict(use_aux_hidden_state=True, use_input_layernorm_in_first_layer=True, use_last_layernorm=True)
EXPECTED |= dict(attention_mode="gqa", partial_rotary_factor=1)
EXPECTED |= dict(use_mtp_layernorm=False, next_layer_regular=True, parallel_draft_step=1, eagle_decoder_type="llama")
# Whether rotary embeddings turn halves of a head against each other, by default, or neighbours; `Description` has it.
NEOX = ("rope_is_neox_style", "is_neox_style")
# What the tensors tell, or training, loading and the target alone read; `*_id` are tokens of prompts.
HARMLESS = {"attention_bias", "mlp_bias", "qkv_bias", "auto_map", "attention_dropout", "initializer_range", "use_cache"}
HARMLESS |= {"torch_dtype", "model_type", "pretraining_tp", "max_window_layers", "sliding_window", "name_or_path"}
HARMLESS |= {"target_model_type", "speculators_version", "embed_requires_grad", "ttt_length", "step_loss_decay"}
HARMLESS |= {"draft_num_hidden_layers", "parallel_draft_heads_num_layers", "has_lm_head", "position_embedding_type"}
HARMLESS |= {"tie_word_embeddings", "modal_type", "decoder_sparse_step", "router_aux_loss_coef", "org_vocab_size"}
HARMLESS |= {"attention_head_dim", "cla_share_factor", "dense_list", "norm_type", "pool_type", "use_qk_norm"}
HARMLESS |= {"use_rotary_pos_emb", "attn_implementation", "runtime_block_size", *NEOX}
# Rotary embeddings that follow from the position alone. With text, `mrope` is as without scaling.
ROTATIONS = ("default", "linear", "llama3", "yarn", "mrope")
ROTATION_KEYS = {"type", "rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "truncate"}
ROTATION_KEYS |= {"original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
ROTATION_KEYS |= {"attention_factor", "mrope_section", "mrope_interleaved"}


def check_keys(draft: Published) -> Mapping[str, Any]:
    """The part of its config that describes the layers.

    Raises `CheckpointError` for a key that is not known, and one of another value than is built.
    """
    layer, inner = draft.parts
    _check(draft, draft.config, READ[draft.format])
    _check(draft, inner, {IDS})
    if layer is not draft.config:
        _check(draft, layer, LAYERS | ROTARY | WINDOWS)
    return layer


def check_block_keys(draft: Published) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The parts that describe the layers, and the blocks. Raises as `check_keys`."""
    layer, inner = draft.parts
    block, described = BLOCK | BLOCK_HARMLESS | {BLOCK_IDS[draft.format]}, LAYERS | ROTARY | WINDOWS
    _check(draft, inner, block)
    if layer is not draft.config:
        _check(draft, layer, described)
        _check(draft, draft.config, block | {"speculators_model_type", "speculators_config", LAYER})
    else:
        _check(draft, draft.config, block | described | {BLOCK_INNER, "target_model_name_or_path"})
    keys = {**draft.config, **inner}
    if (kind := keys.get("markov_head_type")) not in (None, "vanilla", "gated"):
        raise draft.misfit("markov_head_type", kind, "vanilla or gated", UnsupportedModelError)
    return layer, keys


def _check(draft: Published, config: Mapping[str, Any], read: set[str]) -> None:
    for key, value in config.items():
        if key in WINDOWS & read:
            continue
        if key in ("quantization_config", "compression_config") and value:
            raise draft.unsupported(
                f"stores quantized weights ({key} in config.json); expected bf16, fp16 or fp32: choose the draft in "
                "one of them"
            )
        if key == "layer_types":
            if other := sorted({*map(str, value or ())} - {"full_attention"}):
                raise draft.unsupported(f"has a layer of {other[0]}; expected full_attention")
        elif key in EXPECTED:
            if value is not None and value != EXPECTED[key]:
                raise draft.misfit(key, value, f"{EXPECTED[key]!r}, the only one supported", UnsupportedModelError)
        elif (
            key not in read | HARMLESS | _of_any_model()
            and value
            and (not key.endswith("_id") or key == "mask_token_id")
        ):
            raise draft.unsupported(
                f"has the key {key} in config.json ({value!r}), which is not read, and may change what the draft "
                "computes; remove it if it does not"
            )


@cache
def _of_any_model() -> frozenset[str]:
    """What transformers writes into every config, now or formerly."""
    return frozenset({*PreTrainedConfig().to_dict(), *GenerationConfig().to_dict()})


def layer_config(draft: Published, layer: Mapping[str, Any]) -> PreTrainedConfig:
    """Of a Llama; with norms of queries and keys of a Qwen3: the tensors tell. Raises `CheckpointError`."""
    options = {key: layer[key] for key in (*LAYERS, *ROTARY) if layer.get(key) is not None}
    if missing := [key for key in NEEDED if key not in options]:
        raise draft.wrong(
            f"has no {missing[0]} in config.json; expected what describes its layers, export or download it again"
        )
    options.setdefault("num_hidden_layers", 1)
    options.setdefault("num_key_value_heads", options["num_attention_heads"])
    for name in ROTARY - {"rope_theta"} & options.keys():
        options[name] = _rotation(draft, options[name])
    qwen = any(name.endswith("q_norm.weight") for name in draft.tensors)
    try:
        config: PreTrainedConfig = (Qwen3Config if qwen else LlamaConfig)(**options, tie_word_embeddings=False)
        config.head_dim = options.get("head_dim") or config.hidden_size // config.num_attention_heads
    except Exception as error:  # of values that transformers checks, each of another type
        raise draft.wrong(f"has a config.json that cannot be used: {first_line(error)}") from None
    return config


def _rotation(draft: Published, rope: Any) -> dict[str, Any]:
    if isinstance(rope, Mapping) and isinstance(rope.get("full_attention"), Mapping):
        rope = rope["full_attention"]
    if not isinstance(rope, Mapping):
        raise draft.wrong(f"describes its rotary embeddings by {rope!r} in config.json; expected an object")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROTATIONS:
        raise draft.unsupported(f"has rotary embeddings of the type {kind!r}; expected one of {', '.join(ROTATIONS)}")
    for key, value in rope.items():
        if key not in ROTATION_KEYS and value and not (key == "partial_rotary_factor" and value == 1):
            raise draft.unsupported(f"has the key {key} of rotary embeddings ({value!r}), which is not read")
    return {**rope, "rope_type": "default" if kind == "mrope" else kind}
