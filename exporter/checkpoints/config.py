"""What a checkpoint's config says: how many positions, what layers keep, whether it needs code of its own.

How many positions a model has, and how far its rotary embeddings stretch them.

What layers keep in addition to keys and values, from the config alone: no architecture names, nothing is loaded.

transformers makes a model's cache from its config, so it knows what each layer will keep.

Checkpoints that bring code of their own, as `auto_map` of config.json names it. None of it is ever run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers.cache_utils import CacheLayerMixin, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ...errors import UnsupportedModelError

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


def max_positions(config: Any) -> int | None:
    """Longest sequence that the positions of `config` allow, where it says."""
    text = config.get_text_config()
    # Beyond this length the long factors would hold for the cached rows too, which were made with the short ones.
    switches: list[int] = [
        rope["original_max_position_embeddings"] for rope in rotary(text) if rope.get("rope_type") == "longrope"
    ]
    # Within one chunk, attention that ends at its borders sees all that comes before.
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        switches.append(text.attention_chunk_size)
    if switches:
        return min(switches)
    lengths = (getattr(text, name, None) for name in LENGTHS)
    length = next((value for value in lengths if isinstance(value, int) and value > 0), None)
    if length is None:
        return None
    return max(length, min((_reach(rope, length) for rope in rotary(text)), default=length))


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
    try:
        return list(DynamicCache(config=config).layers)
    except Exception:  # of any kind: such a model has a cache of its own
        return []


# In `auto_map`, by how much they say of the model. A tokenizer's code is refused where the tokenizer is loaded.
CLASSES = ("AutoModelForCausalLM", "AutoModel", "AutoConfig")


def own_code(folder: Path) -> str:
    """Which class of its own the checkpoint names for the model, empty for none."""
    named = _config(folder).get("auto_map")
    if not isinstance(named, dict):
        return ""
    return next((str(named[name]) for name in CLASSES if named.get(name)), "")


def refuse_own_code(source: str, folder: Path) -> None:
    """Raises `UnsupportedModelError` for a checkpoint that only code of its own can load."""
    if not (own := own_code(folder)):
        return
    config = _config(folder)
    model_type, names = config.get("model_type"), config.get("architectures")
    known = not isinstance(names, list) or not names or any(hasattr(transformers, str(name)) for name in names)
    if str(model_type) in CONFIG_MAPPING_NAMES and known:
        return
    found = f"{names[0]} ({model_type})" if isinstance(names, list) and names else model_type
    raise UnsupportedModelError(
        f"{source} needs code of its own ({own}), which is never run; expected an architecture that transformers has, "
        f"found {found}: give a checkpoint of such an architecture, or install a transformers that has this one"
    )


def note_of_own_code(source: str, folder: Path, model_type: str) -> str:
    """A note that transformers loads the checkpoint without its own code, empty if it has none."""
    if not (own := own_code(folder)):
        return ""
    return (
        f"{source} brings code of its own ({own}), which is not run: it is built as transformers' {model_type}, which "
        "may answer otherwise"
    )


def _config(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
