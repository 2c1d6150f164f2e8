"""Attention over a static, in-place cache, in two dialects of ONNX.

transformers hands every model's attention (query, key, value after the rotary embedding) to a registered
function. Ours emits ONNX operators instead of computing, and so serves any architecture:

`onnx`  opset 24 `TensorScatter` writes the new rows, `Attention` reads the whole cache under a boolean mask
        made in the graph (True = attend). For TensorRT, and as the portable reference.
`ort`   `com.microsoft::GroupQueryAttention` does both and costs by the used length. For ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.onnx.ops import symbolic, symbolic_multi_out
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from ..errors import UnsupportedModelError

Dialect = Literal["onnx", "ort"]
DIALECTS: tuple[Dialect, ...] = ("onnx", "ort")
IMPLEMENTATION = "specexport"

# Keyword arguments of attention functions that change nothing at inference, or are handled below.
HARMLESS = {"dropout", "position_ids", "position_embeddings", "use_cache", "output_attentions", "output_hidden_states"}
HARMLESS |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "return_dict", "cache_position"}


@dataclass
class StaticCache:
    """What stands in for the transformers cache while tracing: hands keys and values through unchanged.

    position: `[1] int64`, rows of the cache in use. past: per layer `(key, value)`, each
    `[1, num_kv_heads, capacity, head_dim]`. present: the same after this pass, by layer.
    """

    position: Tensor
    past: list[tuple[Tensor, Tensor]]
    present: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    is_compileable: bool = False
    # transformers reads these for hybrid caches; here every layer holds every row.
    is_sliding: list[bool] = field(default_factory=list)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        return self.position[0]

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        return self.position[0]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return int(self.past[0][0].shape[2])


def scatter_and_attend(
    query: Tensor, key: Tensor, value: Tensor, past: tuple[Tensor, Tensor], position: Tensor, scale: float, window: int, softcap: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The `onnx` dialect; query `[1, H, T, D]`, key and value `[1, H_kv, T, D]`, result `[1, H, T, D]`."""
    key_all, value_all = (
        symbolic("TensorScatter", (rows, new, position), dict(axis=2), dtype=rows.dtype, shape=rows.shape, version=24)
        for rows, new in zip(past, (key, value), strict=True)
    )
    columns = torch.arange(key_all.shape[2])[None, :]
    rows = (position + torch.arange(query.shape[2]))[:, None]
    mask = columns <= rows
    if window:
        mask = mask & (columns > rows - window)
    attributes: dict[str, Any] = dict(scale=scale)
    if softcap:
        attributes["softcap"] = softcap
    output = symbolic(
        "Attention", (query, key_all, value_all, mask[None, None]), attributes, dtype=query.dtype, shape=query.shape, version=24
    )
    return output, (key_all, value_all)


def group_query_attention(
    query: Tensor, key: Tensor, value: Tensor, past: tuple[Tensor, Tensor], position: Tensor, scale: float, window: int, softcap: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The `ort` dialect; shapes as in `scatter_and_attend`. Rows are appended behind `position` in place."""
    heads, length, kv_heads = query.shape[1], query.shape[2], key.shape[1]
    packed = [tensor.transpose(1, 2).reshape(1, length, -1) for tensor in (query, key, value)]
    last = position.to(torch.int32) + (length - 1)
    attributes: dict[str, Any] = dict(num_heads=heads, kv_num_heads=kv_heads, scale=scale)
    if window:
        attributes["local_window_size"] = window
    if softcap:
        attributes["softcap"] = softcap
    output, key_all, value_all = symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        (*packed, *past, last, (last + 1)[0]),
        attributes,
        dtypes=(query.dtype, key.dtype, value.dtype),
        shapes=(packed[0].shape, past[0].shape, past[1].shape),
        version=1,
    )
    return output.view(1, length, heads, -1).transpose(1, 2), (key_all, value_all)


EMITTERS = {"onnx": scatter_and_attend, "ort": group_query_attention}


@contextmanager
def static_cache_attention(model: PreTrainedModel, cache: StaticCache, dialect: Dialect) -> Iterator[None]:
    """Route the model's attention through `dialect` and `cache` while the context lasts.

    Raises `UnsupportedModelError` from inside the forward pass when a layer asks for what neither dialect has.
    """

    def attention(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        layer = int(getattr(module, "layer_idx", len(cache.present)))
        scale = float(options.pop("scaling", None) or query.shape[-1] ** -0.5)
        window = int(options.pop("sliding_window", None) or 0)
        softcap = float(options.pop("softcap", None) or 0.0)
        if options.pop("is_causal", None) is False:
            raise UnsupportedModelError(f"layer {layer} attends to what comes after; only causal attention can be cached")
        unknown = [name for name, given in options.items() if name not in HARMLESS and given is not None and given is not False]
        if unknown:
            raise UnsupportedModelError(
                f"layer {layer} passes {', '.join(sorted(unknown))} to attention, which the static cache has no form of"
            )
        if value.shape[-1] != key.shape[-1]:
            raise UnsupportedModelError(
                f"layer {layer} has keys of {key.shape[-1]} and values of {value.shape[-1]} columns; they must be equal"
            )
        if attention_mask is not None:
            raise UnsupportedModelError(f"layer {layer} brings a mask of its own; only causal and sliding-window masks are known")
        if layer in cache.present:
            raise UnsupportedModelError(f"layer {layer} attends twice in one pass; a cache holds one attention a layer")
        output, cache.present[layer] = EMITTERS[dialect](query, key, value, cache.past[layer], cache.position, scale, window, softcap)
        return output.transpose(1, 2), None

    before = model.config._attn_implementation
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, lambda *args, **kwargs: None)
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
