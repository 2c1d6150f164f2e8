"""The graphs of a draft of whole blocks (`exporter/hidden_drafts/block.py`), for ONNX Runtime's dialects.

    context     hidden `[1, T, F]`, position `[1]`, past -> present: rows of the target's hidden states into the caches
    block       tokens `[1]`, position `[1]`, columns `[C]`, past -> logits `[1, slots, m]`, states `[1, slots, H]`
    chain       tokens `[1]`, states `[1, H]`, logits `[1, m]` -> chained `[1, m]`, confidence `[1]`

A block sees the rows 0 to C - 1 of the caches and itself, and writes nothing. It stands at `position`, which is C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.export import Dim

from ...bundle import CONFIDENCE, HIDDEN, CacheLayer, Contract
from ...engines.onnxruntime.hidden import CHAINED, STATES
from ..checkpoints.half_precision import TORCH_DTYPES
from ..dialects import Dialect
from ..hidden_drafts.block import BlockDraft
from .attention_ops import EMITTERS, Layer, padded
from .onnx_export import export_graph
from .trees import HIDDEN as UNSEEN


def block_layers(model: BlockDraft) -> tuple[CacheLayer, ...]:
    """Shapes of its cache."""
    config = model.config
    return tuple(CacheLayer(config.num_key_value_heads, config.head_dim) for _ in range(config.num_hidden_layers))


def trace_context(model: BlockDraft, layers: Sequence[CacheLayer], dialect: Dialect, contract: Contract) -> ir.Model:
    past = _caches(layers, contract)
    inputs = {HIDDEN: torch.zeros(1, 3, len(model.taps) * model.tap_width), "position": torch.zeros(1).long()} | past
    shapes = {HIDDEN: {1: Dim("width", min=1, max=contract.capacity)}}

    def write(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The rows attend to nothing but themselves: attention is what writes rows in place."""
        written: list[Tensor] = []
        rows = model.context(model.fuse(given[HIDDEN].to(model.dtype)), given["position"])
        for index, pair in enumerate(rows):
            cache = given[f"past.{index}.key"], given[f"past.{index}.value"]
            key, value = (padded(half, cache[0].shape[-1]) for half in pair)
            layer = Layer(cache, given["position"], None, 1.0, 1, 0.0)
            written += EMITTERS[dialect](key, key, value, layer)[1]
        return tuple(written)

    outputs = [name.replace("past", "present") for name in past]
    return export_graph(model, write, inputs, outputs, shapes, dialect)


def trace_block(model: BlockDraft, layers: Sequence[CacheLayer], dialect: Dialect, contract: Contract) -> ir.Model:
    inputs = {"tokens": torch.zeros(1).long(), "position": torch.full((1,), 3), "columns": torch.arange(3)}
    shapes = {"columns": {0: Dim("span", min=1, max=contract.capacity)}}
    outputs = ["logits", STATES] if model.kind == "dspark" else ["logits"]

    def block(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        position, slot = given["position"], torch.arange(model.form.block_size)
        logits, states = model.block(given["tokens"], position + slot, partial(_attend, model, given))
        return (logits.float(), states.float())[: len(outputs)]

    return export_graph(model, block, inputs | _caches(layers, contract), outputs, shapes, dialect)


def trace_chain(model: BlockDraft, dialect: Dialect) -> ir.Model:
    inputs = {"tokens": torch.zeros(1).long(), STATES: torch.zeros(1, model.lm_head.in_features)}
    inputs["logits"] = torch.zeros(1, model.lm_head.out_features)
    outputs = [CHAINED, CONFIDENCE] if model.confidence_head is not None else [CHAINED]

    def chain(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        chained = model.chain(given["tokens"], *(given[name].to(model.dtype) for name in (STATES, "logits")))
        return tuple(part.float() for part in chained if part is not None)

    return export_graph(model, chain, inputs, outputs, {}, dialect)


def _caches(layers: Sequence[CacheLayer], contract: Contract) -> dict[str, Tensor]:
    dtype = TORCH_DTYPES[contract.caches]
    return {
        f"past.{index}.{half}": torch.zeros(1, layer.num_kv_heads, contract.capacity, layer.head_dim, dtype=dtype)
        for index, layer in enumerate(layers)
        for half in ("key", "value")
    }


def _attend(
    model: BlockDraft, given: Mapping[str, Tensor], index: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """In plain operators: one that writes caches would see no slots after its own."""
    form, width, columns = model.form, query.shape[-1], given["columns"]
    slot = torch.arange(form.block_size)
    cache = [given[f"past.{index}.{half}"][:, :, : columns.shape[0], :width] for half in ("key", "value")]
    # As the context's keys and values are rounded, so are the block's: its reference rounds all.
    key, value = (
        torch.cat([seen.to(own.dtype), own.to(seen.dtype).to(own.dtype)], 2)
        for seen, own in zip(cache, (key, value), strict=True)
    )
    groups = query.shape[1] // key.shape[1]
    rows = (query * width**-0.5).reshape(1, key.shape[1], groups * form.block_size, width)
    scores = (rows @ key.transpose(2, 3)).float()
    window, causal = form.windows[index], form.causal[index]
    if window or causal:
        own = slot <= slot[:, None] if causal else slot.new_ones(len(slot), len(slot)).bool()
        near = (columns >= (given["position"] - window if window else 0))[None].expand(len(slot), -1)
        scores = torch.where(torch.cat([near, own], 1).repeat(groups, 1), scores, UNSEEN)
    if form.sinks:
        layer: Any = model.layers[index]
        sinks = layer.self_attn.sinks.float().view(1, key.shape[1], groups, 1)
        scores = torch.cat([scores, sinks.repeat_interleave(form.block_size, 2)], -1)
    output = torch.softmax(scores, -1)[..., : key.shape[2]].to(value.dtype) @ value
    return output.reshape(1, query.shape[1], form.block_size, width).transpose(1, 2)
