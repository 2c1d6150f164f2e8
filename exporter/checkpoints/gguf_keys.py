"""What a GGUF file's header says about its model, and a config that holds it.

Every key is read, known to change nothing, or refused by its name: transformers' loader drops those that it does not
know, and then its config class's defaults hold. Where the file says nothing, llama.cpp's defaults do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from ...errors import UnsupportedModelError
from .gguf_rotary import ROTARY, apply_rotary
from .source import INSTEAD

# Attributes of a config, the first that its class has.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "use_parallel_residual": ("use_parallel_residual", "parallel_attn"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("global_head_dim", "head_dim"),
    "attention.key_length_swa": ("head_dim",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale",),
    "residual_scale": ("residual_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_gating_func": ("scoring_func",),
    "shortconv.l_cache": ("conv_L_cache",),
}
GATING = {1: "softmax", 2: "sigmoid"}
# What a model does that has no such attribute. None: any value, since nothing depends on it.
TAKEN_FOR_GRANTED: dict[str, tuple[Any, ...] | None] = {
    "context_length": None,
    "tensor_data_layout": None,
    "pooling_type": None,
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0,),
    "embedding_length_per_layer_input": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_gating_func": ("softmax",),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
}
TOKENIZER_READ = (
    *("model", "pre", "tokens", "scores", "token_type", "merges", "add_bos_token", "add_eos_token", "add_space_prefix"),
    *(f"{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")),
)
# Of tokens that nothing here asks for, and of normalizers that a vocabulary of byte pairs does not have.
TOKENIZER_WITHOUT_EFFECT = (
    *("token_type_count", "precompiled_charsmap", "remove_extra_whitespaces"),
    *(f"{name}_token_id" for name in ("seperator", "cls", "mask", "prefix", "suffix", "middle")),
    *(f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")),
)
# Each with one of these keys: llama.cpp reads no file without, and the class's defaults are another model's.
REQUIRED = (
    *(("context_length",), ("embedding_length",), ("block_count",), ("attention.head_count",)),
    ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
)
LAYER_TYPES = {True: "sliding_attention", False: "full_attention"}
# Models of these sizes scale attention by the width per head, all others by the length of a key.
LARGEST = {"gemma2": 46, "gemma3": 62}


def apply_header(source: str, values: Mapping[str, Any], config: Any, read: Container[str] = ()) -> None:
    """Make `config`, which transformers made of the header, hold what the header says.

    values: the header's. read: keys that need no look. Raises `UnsupportedModelError` for a key whose value the model
    cannot be given.
    """
    architecture = str(values["general.architecture"])
    prefix = f"{architecture}."
    every = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    stated = {key: value for key, value in every.items() if prefix + key not in read}

    def refuse(key: str, why: str = "which is not read from GGUF") -> UnsupportedModelError:
        name = f"{architecture}.{key}"
        return UnsupportedModelError(f"{source} says {name} = {_shown(values[name])}, {why}; {INSTEAD}", name)

    _check_others(source, values)
    for keys in REQUIRED:
        if not any(every.get(key) for key in keys):
            raise UnsupportedModelError(
                f"{source} does not say {' or '.join(prefix + key for key in keys)}, which every model has; {INSTEAD}"
            )
    apply_rotary(every, config, refuse)
    said = stated if read else _defaults(stated, config) | stated  # the loader's function for one architecture has some
    if not read or "attention.sliding_window" in stated:
        _apply_windows(architecture, said, config, refuse)
    _apply_attributes(said, config, refuse)
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if f"tokenizer.ggml.{key}_token_id" not in values:
            setattr(config, f"{name}_token_id", None)  # not that of the class
    if hasattr(config, "query_pre_attn_scalar"):
        wide = said["block_count"] == LARGEST.get(architecture)
        config.query_pre_attn_scalar = _width(said) if wide else said["attention.key_length"]


def _defaults(stated: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """What llama.cpp goes by where a file says nothing, for the attributes that the config has."""
    usual: dict[str, Any] = {}
    if "attention.head_count" in stated and "embedding_length" in stated:
        usual["attention.head_count_kv"] = stated["attention.head_count"]
        usual["attention.key_length"] = _width(stated)
    fresh = type(config)()
    return {key: value for key, value in usual.items() if _attribute(key, fresh) is not None}


def _apply_attributes(said: Mapping[str, Any], config: Any, refuse: Callable[..., UnsupportedModelError]) -> None:
    fresh = type(config)()  # the loader puts attributes into a config that its class does not have
    for key, value in said.items():
        if key in ROTARY or key in ("attention.sliding_window", "attention.sliding_window_pattern"):
            continue
        value = _one(value)
        if key == "expert_gating_func":
            value = GATING.get(value, value)
        if key in ("attention.value_length", "attention.value_length_swa"):
            length = said.get(key.replace("value", "key")) or getattr(config, "head_dim", None) or _width(said)
            if value != length:
                raise refuse(key, "another length than that of the keys")
        elif key == "tensor_data_layout" and value == "jploski" and said.get("attention.head_count_kv") != 1:
            raise refuse(key, "which transformers does not undo for several key-value heads")
        elif (name := _attribute(key, fresh)) is not None:
            off = key.endswith("softcapping") and not value
            if not _hold(config, name, None if off else value):
                raise refuse(key, f"and {type(config).__name__} has {name} = {getattr(config, name, None)!r}")
        elif not _granted(key, value, said):
            raise refuse(key)


def _apply_windows(
    architecture: str, said: Mapping[str, Any], config: Any, refuse: Callable[..., UnsupportedModelError]
) -> None:
    """Which layers see only the last tokens, and how many."""
    window = said.get("attention.sliding_window", 4096 if architecture == "gemma2" else 0)
    pattern = said.get("attention.sliding_window_pattern")
    types = getattr(config, "layer_types", None)
    if not hasattr(type(config)(), "sliding_window"):
        for key in ("attention.sliding_window", "attention.sliding_window_pattern"):
            if _flat(said.get(key, 0)) != [0]:
                raise refuse(key)
        return
    if window or types is None:  # else its layers say that none has one
        config.sliding_window = window or None
    if types is None:
        if pattern is not None and _flat(pattern) != [bool(window)]:
            raise refuse("attention.sliding_window_pattern")
        return
    if not window:
        config.layer_types = [LAYER_TYPES[False]] * len(types)
    elif pattern is not None:
        every = isinstance(pattern, int) and not isinstance(pattern, bool)
        slides = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(len(types))] if every else pattern
        config.layer_types = [LAYER_TYPES[bool(slide)] for slide in slides]
    elif LAYER_TYPES[True] not in types:
        raise refuse("attention.sliding_window", "and not which layers it is for")
    if len(config.layer_types) != len(types):
        raise refuse("attention.sliding_window_pattern", f"expected {len(types)} layers")


def _check_others(source: str, values: Mapping[str, Any]) -> None:
    """Raises `UnsupportedModelError` for keys of no architecture that are neither read nor without effect."""
    for key, value in values.items():
        space, _, name = key.partition(".")
        if space == "tokenizer":
            setting = name.removeprefix("ggml.")
            known = (
                name.partition(".")[0] in ("chat_template", "chat_templates")
                or name == "huggingface.json"  # repeats the others
                or setting in (*TOKENIZER_READ, *TOKENIZER_WITHOUT_EFFECT)
                or not _truth(value)
            )
            if known and not (setting == "remove_extra_whitespaces" and values.get("tokenizer.ggml.model") == "t5"):
                continue
        elif space not in ("adapter", "clip", "diffusion", "xielu") and not (
            (key == "general.type" and value != "model") or (key == "split.count" and value > 1)
        ):
            continue
        raise UnsupportedModelError(
            f"{source} says {key} = {_shown(value)}, which is not read from GGUF; {INSTEAD}", key
        )


def _attribute(key: str, fresh: Any) -> str | None:
    """head_dim: also of a class that does not declare it, as Qwen3-MoE's. Where a model does not read it, its weights
    have another shape.
    """
    undeclared = ("head_dim",) if key == "attention.key_length" else ()
    return next((name for name in ATTRIBUTES.get(key, ()) if hasattr(fresh, name) or name in undeclared), None)


def _hold(config: Any, name: str, value: Any) -> bool:
    try:
        if getattr(config, name, None) != value:
            setattr(config, name, value)
    except AttributeError:  # computed from others
        pass
    return bool(getattr(config, name) == value)


def _granted(key: str, value: Any, said: Mapping[str, Any]) -> bool:
    if key == "attention.head_count_kv":
        return bool(value == said.get("attention.head_count"))
    if key == "feed_forward_length":
        return bool(value == 4 * said["embedding_length"])
    if key not in TAKEN_FOR_GRANTED:
        return False
    values = TAKEN_FOR_GRANTED[key]
    return values is None or value in values


def _width(said: Mapping[str, Any]) -> int:
    """Elements of the hidden state for each attention head."""
    return int(said["embedding_length"]) // max(1, int(_one(said["attention.head_count"])))


def _one(value: Any) -> Any:
    """The value, where a list says the same of every layer."""
    return value[0] if isinstance(value, list) and value and all(entry == value[0] for entry in value) else value


def _flat(value: Any) -> list[Any]:
    return sorted(set(value)) if isinstance(value, list) else [value]


def _truth(value: Any) -> bool:
    return bool(value) and not (isinstance(value, float) and math.isnan(value))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
