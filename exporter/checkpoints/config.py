"""What a checkpoint's config says, before anything is loaded and without names of architectures: how many positions the
model has, and how far its rotary embeddings stretch them; what layers keep in addition to keys and values.
"""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import CacheLayerMixin, DynamicCache

from .source import LENGTHS


def max_positions(config: Any) -> int | None:
    """Longest sequence that the positions of `config` allow, where it says."""
    text = config.get_text_config()
    if switches := _switches(text):
        return min(switches)[0]
    lengths = (getattr(text, name, None) for name in LENGTHS)
    length = next((value for value in lengths if isinstance(value, int) and value > 0), None)
    if length is None:
        return None
    return max(length, min((_reach(rope, length) for rope in rotary(text)), default=length))


def end_of_positions(config: Any) -> str:
    """Why they end before the length that the config states; "" where they do not."""
    return min(_switches(config.get_text_config()), default=(0, ""))[1]


def _switches(text: Any) -> list[tuple[int, str]]:
    """Lengths beyond which the model would compute otherwise, and why."""
    # Beyond this length the long factors would hold for the cached rows too, which were made with the short ones.
    switches = [
        (int(rope["original_max_position_embeddings"]), "longrope turns longer sequences by other factors")
        for rope in rotary(text)
        if rope.get("rope_type") == "longrope"
    ]
    # Within one chunk, attention that ends at its borders sees all that comes before.
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        switches.append((text.attention_chunk_size, "its attention is in chunks of so many"))
    return switches


def rotary(config: Any) -> list[dict[str, Any]]:
    """The rotary embeddings' parameters: one set, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [entry for entry in (rope, *rope.values()) if isinstance(entry, dict) and "rope_type" in entry]


def _reach(rope: dict[str, Any], length: int) -> int:
    """How far this embedding reaches. length: what the config says, in most checkpoints already with the factor; those
    to which scaling was added by hand, as Qwen2.5's model card tells, still have the length before it.
    """
    if rope["rope_type"] not in ("yarn", "linear"):
        return length
    return int((rope.get("original_max_position_embeddings") or length) * (rope.get("factor") or 1))


def keeps_states(config: Any) -> bool:
    """Whether a layer keeps a recurrent or a convolution state.

    False too where transformers makes no cache of the config: `tracing/probe.py` then sees what a layer keeps,
    once the model is loaded.
    """
    return any(_has_states(layer) for layer in _cache_layers(config))


def keeps_states_alone(config: Any) -> bool:
    """Whether layers keep states, and none keeps keys and values."""
    return keeps_states(config) and not any(isinstance(layer, CacheLayerMixin) for layer in _cache_layers(config))


def _has_states(layer: Any) -> bool:
    return hasattr(layer, "conv_states") or hasattr(layer, "recurrent_states")


def _cache_layers(config: Any) -> list[Any]:
    """transformers makes a model's cache from its config, so it knows what each layer will keep."""
    try:
        return list(DynamicCache(config=config).layers)
    except Exception:  # of any kind: such a model has a cache of its own
        return []
