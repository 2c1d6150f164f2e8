"""What a model gives its attention, seen in one pass: the shapes of the cache to be made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attention import KeyValue, attention_by


@dataclass
class SeenByAttention:
    """By layer the keys and values that the model's attention is given for `tokens [1, T]`.

    They are `[1, num_kv_heads, T, width]`, each of its own width; a cache of transformers may hold them compressed.
    The number is the layer's own, which may differ from its place in the cache. A layer with code of its own is not
    among them. whole: whether the pass came to its end; if not, as with code that fails without a mask, the layers that
    come later are missing too.
    """

    layers: dict[int, KeyValue] = field(default_factory=dict)
    whole: bool = False


def own_code(layers: int, of: int) -> str:
    """Why a model is refused."""
    which = "its layers compute" if layers == of else f"{layers} of its {of} layers compute"
    return (
        f"{which} attention in code of the model's own; expected transformers' attention interface: choose a model of "
        "another family"
    )


def seen_by_attention(model: PreTrainedModel, tokens: Tensor) -> SeenByAttention:
    """Run the model once, and note what its attention is given."""
    found = SeenByAttention()
    seen = found.layers

    def attention(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any
    ) -> Any:
        seen[int(getattr(module, "layer_idx", len(seen)))] = key, value
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    with torch.no_grad(), attention_by(model, attention), suppress(Exception):  # the trace tells what is wrong
        model(input_ids=tokens, use_cache=True)
        found.whole = True
    return found
