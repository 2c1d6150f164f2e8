"""Checks of a parsed network, so that its plan returns correct tokens and can be captured as a CUDA graph.

Each check yields problems. TensorRT itself accepts all of them: a cache that is not an alias is copied or lost,
attention without its mask reads stale rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...bundle import FEEDBACK, HIDDEN, Contract, ModelSpec

TENSORRT_DTYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16"}
# Layers that wait for a value on the device, which decides whether, how often or over how much they run.
WAITING = (
    "TRIP_LIMIT",
    "RECURRENCE",
    "ITERATOR",
    "LOOP_OUTPUT",
    "CONDITION",
    "CONDITIONAL_INPUT",
    "CONDITIONAL_OUTPUT",
    "NON_ZERO",
)


def check_capture(network: Any) -> Iterator[str]:
    """Check that a CUDA graph can hold it: no layer may wait for a value, and no input may be one that TensorRT reads
    on the host, since all are bound to device memory.
    """
    yield from (
        f"{tensor.name} decides shapes"
        for tensor in map(network.get_input, range(network.num_inputs))
        if tensor.is_shape_tensor
    )
    for layer in _layers(network):
        if layer.type.name in WAITING:
            yield f"{layer.name} is a {layer.type.name} layer, which a CUDA graph cannot hold"


def check_model(network: Any, trt: Any, spec: ModelSpec, contract: Contract, dialect: str) -> Iterator[str]:
    """Check a model graph in the dialect `onnx` or `rows`: its caches, states, hidden states and attention layers."""
    yield from check_capture(network)
    inputs = {tensor.name: tensor for tensor in (network.get_input(index) for index in range(network.num_inputs))}
    outputs = {tensor.name: tensor for tensor in (network.get_output(index) for index in range(network.num_outputs))}
    for name, layer in spec.cache_names("past"):
        kind = TENSORRT_DTYPES[contract.precision]
        cache = (1, layer.num_kv_heads, contract.capacity, layer.head_dim)
        side, rows = ("new", (1, layer.num_kv_heads, -1, layer.head_dim)) if dialect == "rows" else ("present", cache)
        yield from _ends(inputs, "input", name, cache, kind)
        yield from _ends(outputs, "output", name.replace("past", side, 1), rows, kind)
    for name, state in spec.state_names("past"):
        shape, kind = state.shape(contract), TENSORRT_DTYPES[state.precision(contract)]
        yield from _ends(inputs, "input", name, shape, kind)
        yield from _ends(outputs, "output", name.replace("past", "present", 1), shape, kind)
    if spec.taps:
        yield from _ends(outputs, "output", HIDDEN, (1, -1, len(spec.taps) * spec.tap_width), "FLOAT")
    if spec.reads is not None:
        for tensors, side, name in ((inputs, "input", HIDDEN), (outputs, "output", FEEDBACK)):
            yield from _ends(tensors, side, name, (1, -1, spec.reads.width), "FLOAT")
    if dialect != "rows":
        yield from _check_updates(network, spec)
        yield from _check_attention(network, trt, spec)


def attention_layers(network: Any, trt: Any) -> list[Any]:
    """All attention layers of the network, as `IAttentionInputLayer`."""
    layers = [layer for layer in _layers(network) if layer.type.name == "ATTENTION_INPUT"]
    for layer in layers:
        layer.__class__ = trt.IAttentionInputLayer  # the bindings return the base class
    return layers


def _check_updates(network: Any, spec: ModelSpec) -> Iterator[str]:
    """Check that a KVCacheUpdate layer writes every cache: only that is in place, and only from input to output."""
    layers = [layer for layer in _layers(network) if layer.type.name == "KV_CACHE_UPDATE"]
    updates = {layer.get_output(0).name: layer.get_input(0).name for layer in layers}
    for (past, _), (present, _) in zip(spec.cache_names("past"), spec.cache_names("present"), strict=True):
        if updates.get(present) != past:
            yield f"{present} is not {past} updated in place by a KVCacheUpdate layer"


def _check_attention(network: Any, trt: Any, spec: ModelSpec) -> Iterator[str]:
    layers, expected = attention_layers(network, trt), sum(layer.num_kv_heads > 0 for layer in spec.layers)
    attending = len(layers)
    if attending < expected:  # with sinks or capped scores, attention is made of plain operators, with nothing to check
        attending = min(expected, attending + sum(layer.type.name == "SOFTMAX" for layer in _layers(network)))
    if attending < expected:  # there are more where layers share the rows of others
        yield f"found {attending} attention layers, expected {expected} or more"
    for layer in layers:
        attention = layer.attention
        if attention.causal or getattr(getattr(attention, "causal_kind", None), "name", "NONE") != "NONE":
            yield f"{layer.name} applies a causal mask of its own, from the cache's first row instead of the position"
        if attention.mask is None:
            yield f"{layer.name} has no mask: it attends to rows after the position"
        if getattr(attention, "key_value_lengths", None) is not None:
            yield f"{layer.name} takes lengths of keys, which some versions get wrong"
        if not attention.decomposable:
            yield f"{layer.name} may not be made of other kernels, and has none of its own in fp32"


def _ends(tensors: dict[str, Any], side: str, name: str, shape: tuple[int, ...], dtype: str) -> Iterator[str]:
    if name not in tensors:
        yield f"{name} is no {side} of the network"
        return
    found = tensors[name]
    if tuple(found.shape) != shape or found.dtype.name != dtype:
        yield f"{name} is {found.dtype.name} {list(found.shape)}, expected {dtype} {list(shape)}"


def _layers(network: Any) -> Iterator[Any]:
    return (network.get_layer(index) for index in range(network.num_layers))
