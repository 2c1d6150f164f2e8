"""One layer's attention over a static cache, as the operators of each dialect (`dialects.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.onnx.ops import symbolic, symbolic_multi_out

from ...errors import UnsupportedModelError
from .static_cache import KeyValue
from .trees import HIDDEN, Tree


@dataclass(frozen=True)
class Layer:
    """One layer's share of the cache, and how it attends. window: tokens seen, 0 for all. softcap: 0.0 for none.
    tree: of the pass, None where its rows are always a chain.

    sinks: `[H]`, a score of each head's that takes its part of the softmax and has no value (arXiv 2309.17453, learned
    as in gpt-oss); None without.
    """

    past: KeyValue
    position: Tensor
    columns: Tensor | None
    scale: float
    window: int
    softcap: float
    sinks: Tensor | None = None
    tree: Tree | None = None


def scatter_and_attend(query: Tensor, key: Tensor, value: Tensor, layer: Layer) -> tuple[Tensor, KeyValue]:
    """The `onnx` dialect: query `[1, H, T, D]`, key, value `[1, H_kv, T, D]` -> result `[1, H, T, D]`, the cache."""
    key_all, value_all = (
        symbolic(
            "TensorScatter", (rows, new, layer.position), dict(axis=2), dtype=rows.dtype, shape=rows.shape, version=24
        )
        for rows, new in zip(layer.past, (key, value), strict=True)
    )
    return attend_to_scattered(query, key_all, value_all, layer), (key_all, value_all)


def attend_to_scattered(query: Tensor, key_all: Tensor, value_all: Tensor, layer: Layer) -> Tensor:
    """The `onnx` dialect over rows that are in the cache: `[1, H_kv, capacity, D]` -> `[1, H, T, D]`."""
    columns = layer.columns
    assert columns is not None
    seen = [half[:, :, : columns.shape[0]] for half in (key_all, value_all)]
    if layer.softcap or layer.sinks is not None:  # an attribute that TensorRT refuses; what Attention has no input for
        return _attend(query, seen[:1], seen[1:], columns, layer)
    if layer.tree is not None:
        mask = layer.tree.visible(columns, layer.position, layer.window)[None, None]
    else:
        rows = layer.position + torch.arange(query.shape[2])
        # In four dimensions from the start: after an Unsqueeze, TensorRT-RTX 1.7 trips over names of its own where C
        # is fixed.
        mask = _visible(columns[None, None], rows[None, None], layer.window)
    output: Tensor = symbolic(
        "Attention", (query, *seen, mask), dict(scale=layer.scale), dtype=query.dtype, shape=query.shape, version=24
    )
    return output


def group_query_attention(query: Tensor, key: Tensor, value: Tensor, layer: Layer) -> tuple[Tensor, KeyValue]:
    """The `ort` dialect; shapes as in `scatter_and_attend`. Rows are appended at `position` in place."""
    heads, length, kv_heads = query.shape[1], query.shape[2], key.shape[1]
    packed = [tensor.transpose(1, 2).reshape(1, length, -1) for tensor in (query, key, value)]
    last = layer.position.to(torch.int32) + (length - 1)
    attributes: dict[str, Any] = dict(num_heads=heads, kv_num_heads=kv_heads, scale=layer.scale)
    capacity = layer.past[0].shape[2]
    if layer.window:
        if layer.tree is not None:  # the operator's window counts rows of the cache, and rows of a tree lie elsewhere
            raise UnsupportedModelError(
                f"a window of {layer.window} tokens hides rows of a cache of {capacity}, which trees cannot have on "
                "ONNX Runtime; leave --tree-rows out"
            )
        attributes["local_window_size"] = layer.window
    if layer.softcap:
        attributes["softcap"] = layer.softcap
    bias = layer.tree.bias(capacity, layer.position, query.dtype) if layer.tree is not None else None
    sinks = layer.sinks.to(query.dtype) if layer.sinks is not None else None
    optional = _to_the_last(None, None, None, bias, sinks)  # without tables of a rotary embedding, and places
    output, key_all, value_all = symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        (*packed, *layer.past, last, (last + 1)[0], *optional),
        attributes,
        dtypes=(query.dtype, key.dtype, value.dtype),
        shapes=(packed[0].shape, layer.past[0].shape, layer.past[1].shape),
        version=1,
    )
    return output.view(1, length, heads, -1).transpose(1, 2), (key_all, value_all)


def attend_to_all(query: Tensor, key_all: Tensor, value_all: Tensor, layer: Layer) -> Tensor:
    """The `ort` dialect over rows that are in the cache, whose operator cannot leave them alone: all of the capacity,
    in plain operators.
    """
    return _attend(query, [key_all], [value_all], torch.arange(key_all.shape[2]), layer)


def kernel_attention(query: Tensor, key: Tensor, value: Tensor, layer: Layer) -> tuple[Tensor, KeyValue]:
    """The dialect `kernels` (kernels/src/attend.h); shapes as in `scatter_and_attend`. Rows are written in place."""
    rows = [part.transpose(1, 2).reshape(1, part.shape[2], -1) for part in (key, value)]
    output, key_all, value_all = _kernel(query, layer.past, rows, layer)
    return output, (key_all, value_all)


def read_by_kernel(query: Tensor, key_all: Tensor, value_all: Tensor, layer: Layer) -> Tensor:
    """The dialect `kernels` over rows that are in the cache."""
    return _kernel(query, (key_all, value_all), [], layer)[0]


def _kernel(query: Tensor, cached: KeyValue, rows: list[Tensor], layer: Layer) -> list[Tensor]:
    """The result `[1, H, T, D]`, and the cache if there are rows to write."""
    heads, length, kv_heads = query.shape[1], query.shape[2], cached[0].shape[1]
    packed = query.transpose(1, 2).reshape(1, length, -1)
    attributes: dict[str, Any] = dict(heads=heads, kv_heads=kv_heads, scale=layer.scale)
    if not rows:
        attributes["reads"] = 1
    if layer.window:
        attributes["window"] = layer.window
    if layer.softcap:
        attributes["soft_cap"] = layer.softcap
    cache = cached[0].dtype
    half = cache == torch.float16
    ancestors = layer.tree.ancestor if layer.tree is not None else None
    sinks = layer.sinks.float() if layer.sinks is not None else None
    optional = _to_the_last(None, None, sinks, ancestors)  # without tables of a rotary embedding
    output, *written = symbolic_multi_out(
        "specexport::AttentionHalf" if half else "specexport::Attention",
        (packed, *cached, layer.position, *(rows or (None, None)), *optional),
        attributes,
        dtypes=(query.dtype, *(2 * [cache] if rows else [])),
        shapes=(packed.shape, *(part.shape for part in cached if rows)),
        version=1,
    )
    return [output.view(1, length, heads, -1).transpose(1, 2), *written]


def _to_the_last(*inputs: Tensor | None) -> list[Tensor | None]:
    """That is given: a node says so of those after it by having no place for them."""
    return list(inputs[: max((place for place, one in enumerate(inputs, 1) if one is not None), default=0)])


def attend_to_both(query: Tensor, key: Tensor, value: Tensor, layer: Layer) -> tuple[Tensor, KeyValue]:
    """The `rows` dialect; shapes as in `scatter_and_attend`, but it returns the new rows."""
    return attend_to_parts(query, key, value, layer), (key, value)


def attend_to_parts(query: Tensor, key: Tensor, value: Tensor, layer: Layer) -> Tensor:
    """The `rows` dialect: the cache before this pass, and its rows."""
    (past_key, past_value), position, columns = layer.past, layer.position, layer.columns
    assert columns is not None
    span = columns.shape[0]
    # What the cache holds from the position on is stale: no row sees as far as its capacity.
    places = torch.cat(
        [torch.where(columns < position, columns, past_key.shape[2]), position + torch.arange(key.shape[2])]
    )
    return _attend(query, [past_key[:, :, :span], key], [past_value[:, :, :span], value], places, layer)


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor], places: Tensor, layer: Layer) -> Tensor:
    """Attention in plain operators, over parts of keys and values that lie at `places` of the sequence."""
    _, heads, length, width = query.shape
    kv_heads = keys[0].shape[1]
    # The heads that share keys stand below each other as rows, so that keys and values need no copies.
    query = (query.float() * layer.scale).to(query.dtype).reshape(1, kv_heads, heads // kv_heads * length, width)
    scores = torch.cat([query @ part.transpose(2, 3) for part in keys], -1).float()
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if layer.tree is not None:
        mask = layer.tree.visible(places, layer.position, layer.window).repeat(heads // kv_heads, 1)
    else:
        rows = (layer.position + torch.arange(length)).repeat(heads // kv_heads)
        mask = _visible(places, rows, layer.window)
    scores = torch.where(mask, scores, HIDDEN)
    if layer.sinks is not None:  # one more column, which the products with the values leave out
        sinks = layer.sinks.float().reshape(1, kv_heads, -1, 1, 1).expand(-1, -1, -1, length, -1)
        scores = torch.cat([scores, sinks.reshape(1, kv_heads, -1, 1)], -1)
    weights = torch.softmax(scores, -1).to(query.dtype)
    output, first = weights[..., : values[0].shape[2]] @ values[0], values[0].shape[2]
    for part in values[1:]:
        output, first = output + weights[..., first : first + part.shape[2]] @ part, first + part.shape[2]
    return output.reshape(1, heads, length, width)


def padded(part: Tensor, width: int) -> Tensor:
    """`[..., width]`: columns of 0 appended to keys and queries change no score, and come out of values as 0."""
    return functional.pad(part, (0, width - part.shape[-1])) if part.shape[-1] < width else part


def _visible(columns: Tensor, rows: Tensor, window: int) -> Tensor:
    """`[..., rows, columns] bool`: what is not after a row, and not farther before it than its window."""
    columns, rows = columns[..., None, :], rows[..., :, None]
    mask = columns <= rows
    return mask & (columns > rows - window) if window else mask


EMITTERS = {
    "kernels": kernel_attention,
    "onnx": scatter_and_attend,
    "ort": group_query_attention,
    "rows": attend_to_both,
}
# Of layers that share the rows of another, which are written.
READERS = {
    "kernels": read_by_kernel,
    "onnx": attend_to_scattered,
    "ort": attend_to_all,
    "rows": attend_to_parts,
}
