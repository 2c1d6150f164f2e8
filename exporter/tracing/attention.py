"""A model's attention, led through a static cache.

transformers hands every model's attention (query, key, value after the rotary embedding) to a registered
function. Ours emits ONNX operators instead of computing, and so serves any architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from ...errors import UnsupportedModelError
from ..dialects import Dialect
from .attention_ops import EMITTERS, READERS, Layer, padded
from .static_cache import StaticCache

IMPLEMENTATION = "specexport"

# Keyword arguments of attention functions that change nothing at inference, or are handled below.
HARMLESS = {"dropout", "position_ids", "position_embeddings", "use_cache", "output_attentions", "output_hidden_states"}
HARMLESS |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "return_dict", "cache_position"}
HARMLESS |= {"logits_to_keep"}


@contextmanager
def static_cache_attention(model: PreTrainedModel, cache: StaticCache, dialect: Dialect) -> Iterator[None]:
    """Route the model's attention through `dialect` and `cache` while the context lasts.

    Raises `UnsupportedModelError` from inside the forward pass when a layer asks for what no dialect has.
    """

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        layer, shares = cache.layer_of(module, key, value)
        scale = float(options.pop("scaling", None) or query.shape[-1] ** -0.5)
        window = int(options.pop("sliding_window", None) or 0)
        softcap = float(options.pop("softcap", None) or 0.0)
        sinks = options.pop("s_aux", None)
        if options.pop("is_causal", None) is False:
            raise UnsupportedModelError(
                f"layer {layer} attends to what comes after; only causal attention can be cached"
            )
        unknown = [
            name for name, value in options.items() if name not in HARMLESS and value is not None and value is not False
        ]
        if unknown:
            raise UnsupportedModelError(
                f"layer {layer} passes {', '.join(sorted(unknown))} to attention, which the static cache has no form of"
            )
        if attention_mask is not None:
            raise UnsupportedModelError(
                f"layer {layer} brings a mask of its own; only causal and sliding-window masks are known"
            )
        if layer in cache.written and not shares:
            raise UnsupportedModelError(f"layer {layer} attends twice in one pass; a cache holds one attention a layer")
        if layer not in cache.past:
            raise UnsupportedModelError(f"layer {layer} attends, but kept no keys and values of two tokens")
        window = window if window < cache.past[layer][0].shape[2] else 0
        attending = Layer(cache.past[layer], cache.position, cache.columns, scale, window, softcap, sinks, cache.tree)
        width = attending.past[0].shape[-1]
        if shares:
            output = READERS[dialect](padded(query, width), *cache.written[layer], attending)
        else:
            wide = (padded(query, width), padded(key, width), padded(value, width))
            output, cache.written[layer] = EMITTERS[dialect](*wide, attending)
        # A cache that was there before may have wider heads than the layer.
        width = query.shape[-1] if value is cache.past[layer][1] else value.shape[-1]
        return output[..., :width].transpose(1, 2), None

    with attention_by(model, attention):
        yield


@contextmanager
def attention_by(model: PreTrainedModel, attention: Callable[..., Any]) -> Iterator[None]:
    before = model.config._attn_implementation
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, lambda *args, **kwargs: None)
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
