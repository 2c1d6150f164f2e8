"""What layers keep in addition to keys and values, from the config alone: no architecture names, nothing is loaded.

transformers makes a model's cache from its config, so it knows what each layer will keep.
"""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import CacheLayerMixin, DynamicCache


def keeps_states(config: Any) -> bool:
    """Whether a layer keeps a recurrent or a convolution state.

    False too where transformers makes no cache of the config: `tracing/probe_states.py` then sees what a layer keeps,
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
