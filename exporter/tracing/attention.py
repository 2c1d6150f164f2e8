"""Attention over a static cache, in the dialects of `dialects.py`.

transformers hands every model's attention (query, key, value after the rotary embedding) to a registered
function. Ours emits ONNX operators instead of computing, and so serves any architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.onnx.ops import symbolic, symbolic_multi_out
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from ...errors import UnsupportedModelError
from ..dialects import Dialect
from .recurrences import OpenStates, StateIndex
from .trees import HIDDEN, Tree

IMPLEMENTATION = "specexport"

# Keyword arguments of attention functions that change nothing at inference, or are handled below.
HARMLESS = {"dropout", "position_ids", "position_embeddings", "use_cache", "output_attentions", "output_hidden_states"}
HARMLESS |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "return_dict", "cache_position"}
HARMLESS |= {"logits_to_keep"}

KeyValue = tuple[Tensor, Tensor]  # key and value, [1, num_kv_heads, rows, head_dim] each, of one width


class MissingFromCacheError(UnsupportedModelError, AttributeError):
    """A model needs more of its cache than there is. An AttributeError, so that it may ask whether there is."""


@dataclass
class StaticCache:
    """What stands in for the transformers cache while tracing: hands keys and values through unchanged.

    position: `[1] int64`, rows of the cache in use. past: by layer that attends, `capacity` rows. columns: `[C] int64`,
    0 to C - 1, the rows that attention looks at, for the dialects that have a choice. tree: how the rows of a pass hang
    together, None where they are always a chain. written: by layer what the graph gives back, the cache after this
    pass, or in the dialect `rows` its T new rows. brought: by layer the keys and values that it brought, so that one
    which is given the same (cross-layer sharing, as in Gemma 3n and 4) is known to read that layer's rows.

    states: of the layers that keep some. Such a layer is told that it has none yet: it then takes the one path that any
    number of tokens fits. Its functions are ours (`states.py`), and know the state. convolving, recurring: whose.
    """

    position: Tensor
    past: dict[int, KeyValue]
    columns: Tensor | None = None
    tree: Tree | None = None
    states: OpenStates | None = None
    convolving: StateIndex | None = None
    recurring: StateIndex | None = None
    written: dict[int, KeyValue] = field(default_factory=dict)
    brought: dict[int, KeyValue] = field(default_factory=dict)
    is_compileable: bool = False
    # transformers reads these for hybrid caches; here every layer holds every row.
    is_sliding: list[bool] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        raise MissingFromCacheError(
            f"it asks its cache for {name}, which a cache of keys and values alone does not have"
        )

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        self.brought[layer_idx] = key, value
        return key, value

    def layer_of(self, module: torch.nn.Module, key: Tensor, value: Tensor) -> tuple[int, bool]:
        """Whose rows a module attends to that is given these keys and values, and whether it shares them."""
        layer = int(getattr(module, "layer_idx", len(self.written)))
        if layer in self.past and layer not in self.written:
            return layer, False
        same = [place for place, pair in self.brought.items() if pair[0] is key and pair[1] is value]
        layer = [layer, *self.brought, *same][-1]  # a module that several layers share has no number of its own
        return layer, bool(same) and layer in self.written

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        return self.position[0]

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        return self.position[0]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return max((int(key.shape[2]) for key, _ in self.past.values()), default=-1)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        self.recurring = (layer_idx, state_idx)

    def update_conv_state(self, inputs: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        self.convolving = (layer_idx, state_idx)
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return state


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
