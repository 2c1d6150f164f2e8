"""What a GGUF file's header says about rotary positions, as `rope_parameters` of a config."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import UnsupportedModelError

SCALING = "rope.scaling."
ROTARY = (
    *("rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear"),
    *(f"{SCALING}{name}" for name in ("type", "factor", "original_context_length", "finetuned", "attn_factor")),
    *(f"{SCALING}yarn_{name}" for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "log_multiplier")),
)
BASE = 10000.0  # where the file says nothing


def apply_rotary(said: Mapping[str, Any], config: Any, refuse: Callable[..., UnsupportedModelError]) -> None:
    """Make the config hold `said`, the keys of `ROTARY` among others.

    refuse: the error that names a key. Raises it for what a model cannot be given.
    """
    named = [key for key in ROTARY if key in said and not key.startswith(SCALING)]
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        if named or "rope.scaling.type" in said:
            raise refuse((named or ["rope.scaling.type"])[0], "and its positions are not rotary")
        return
    rope = {key: dict(value) if isinstance(value, dict) else value for key, value in rope.items()}
    every = rope.get("full_attention", rope)
    every["rope_theta"] = said.get("rope.freq_base", BASE)
    if "sliding_attention" in rope:
        rope["sliding_attention"]["rope_theta"] = said.get("rope.freq_base_swa", BASE)
    elif said.get("rope.freq_base_swa", every["rope_theta"]) != every["rope_theta"]:
        raise refuse("rope.freq_base_swa", "and its layers have one base")
    _apply_dimensions(said, config, every, refuse)
    _apply_scaling(said, every, refuse)
    config.rope_parameters = rope


def _apply_dimensions(
    said: Mapping[str, Any], config: Any, rope: dict[str, Any], refuse: Callable[..., UnsupportedModelError]
) -> None:
    """How many of a key's elements are rotated: by default all."""
    length = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    count = said.get("rope.dimension_count", length)
    if count == int(length * rope.get("partial_rotary_factor", 1.0)):
        return
    fresh = getattr(type(config)(), "rope_parameters", None) or {}
    if "partial_rotary_factor" not in fresh or count > length:
        raise refuse("rope.dimension_count", f"and all {length} elements of a key are rotated")
    rope["partial_rotary_factor"] = count / length


def _apply_scaling(said: Mapping[str, Any], rope: dict[str, Any], refuse: Callable[..., UnsupportedModelError]) -> None:
    kind = said.get("rope.scaling.type", "linear")
    factor = said.get("rope.scaling.factor", said.get("rope.scale_linear", 0.0)) or 1.0
    attention = said.get("rope.scaling.attn_factor", 1.0)
    for key in ("rope.scaling.yarn_log_multiplier", *(() if kind == "yarn" else ("rope.scaling.attn_factor",))):
        if said.get(key, 0.0) not in (0.0, 1.0 if key.endswith("attn_factor") else 0.0):
            raise refuse(key)
    if kind not in ("none", "linear", "yarn"):
        raise refuse("rope.scaling.type")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        rope["rope_type"] = "default"
    elif kind == "linear":
        rope |= dict(rope_type="linear", factor=factor)
    elif factor <= 1.0:
        raise refuse("rope.scaling.type", "and no factor above 1")
    else:
        usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        # llama.cpp and transformers take it for different things, where it is not the one that both compute.
        if not math.isclose(said.get("rope.scaling.yarn_attn_factor", usual), usual, rel_tol=1e-5):
            raise refuse("rope.scaling.yarn_attn_factor")
        if said.get("rope.scaling.yarn_ext_factor", 1.0) not in (-1.0, 1.0):
            raise refuse("rope.scaling.yarn_ext_factor")
        original = said.get("rope.scaling.original_context_length", said.get("context_length"))
        rope |= dict(rope_type="yarn", factor=factor, original_max_position_embeddings=original)
        rope |= dict(attention_factor=usual * attention)
        rope["beta_fast"] = said.get("rope.scaling.yarn_beta_fast", 32.0)
        rope["beta_slow"] = said.get("rope.scaling.yarn_beta_slow", 1.0)
