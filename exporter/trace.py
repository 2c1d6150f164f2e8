"""Trace a causal language model into an ONNX graph that keeps the contract of `bundle.py`."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import torch
from torch import Tensor
from torch.export import Dim
from torch.onnx.ops import symbolic
from transformers import PreTrainedModel

from ..bundle import CacheLayer, Contract
from ..errors import UnsupportedModelError
from .attention import OPSETS, Dialect, StaticCache, static_cache_attention
from .checkpoint import first_line
from .precision import DTYPES

# Of the dialect for old parsers: the one that came with its opset.
ROWS_IR_VERSION = 8


def probe_cache(model: PreTrainedModel) -> tuple[CacheLayer, ...]:
    """Shapes of the model's cache, found by running two tokens through it: no names of config fields needed.

    Raises `UnsupportedModelError` when a layer keeps anything but keys and values.
    """
    name = type(model).__name__
    try:
        with torch.no_grad():
            output = model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True)
    except Exception as error:
        raise UnsupportedModelError(f"{name} cannot continue two tokens: {first_line(error)}") from error
    cache = getattr(output, "past_key_values", None)
    layers = []
    for index, layer in enumerate(getattr(cache, "layers", ())):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.ndim != 4 or keys.shape[2] != 2:
            raise UnsupportedModelError(f"{name}: layer {index} keeps a state that is no key-value cache ({type(layer).__name__})")
        if keys.shape != values.shape:
            raise UnsupportedModelError(
                f"{name}: layer {index} has keys {list(keys.shape)} and values {list(values.shape)}; they must be equal"
            )
        layers.append(CacheLayer(int(keys.shape[1]), int(keys.shape[3])))
    if not layers:
        raise UnsupportedModelError(f"{name} returns no key-value cache, so there is nothing to make static")
    return tuple(layers)


def trace(model: PreTrainedModel, layers: tuple[CacheLayer, ...], dialect: Dialect, contract: Contract) -> ir.Model:
    """The model's graph in `dialect`, its weights shared with `model`. Raises `UnsupportedModelError` with the reason."""
    names = [f"{index}.{half}" for index in range(len(layers)) for half in ("key", "value")]
    inputs = {"tokens": torch.zeros(1, 3, dtype=torch.int64), "position": torch.zeros(1, dtype=torch.int64)}
    dynamic = {"tokens": {1: Dim("width", min=1, max=contract.capacity)}}
    if dialect != "ort":
        inputs["columns"] = torch.arange(contract.capacity // 2)
        dynamic["columns"] = {0: Dim("span", min=1, max=contract.capacity)}
    for name, layer in zip(names, (layer for layer in layers for _ in "kv"), strict=True):
        shape = (1, layer.num_kv_heads, contract.capacity, layer.head_dim)
        inputs[f"past.{name}"] = torch.zeros(shape, dtype=DTYPES[contract.precision])
    shapes = [dynamic.get(name, {}) for name in inputs]
    written = "new" if dialect == "rows" else "present"
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                StaticDecoder(model, dialect, contract.widest_step).eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=["logits", *(f"{written}.{name}" for name in names)],
                dynamic_shapes=(*shapes[:2], tuple(shapes[2:])),  # as `forward` takes them
                opset_version=OPSETS[dialect],
                dynamo=True,
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise _reason(model, error) from error
    assert program is not None
    logits = program.model.graph.outputs[0]
    # Traced as T rows; a prefill chunk gives one (see kept_rows). The engine compares the name with the manifest.
    logits.shape = ir.Shape([1, contract.rows_name, logits.shape[2]])  # type: ignore[index]
    if dialect == "rows":
        program.model.ir_version = ROWS_IR_VERSION
    return program.model


class StaticDecoder(torch.nn.Module):
    """`(tokens, position, columns unless ort, *past) -> (logits, *written)` around any `AutoModelForCausalLM`."""

    def __init__(self, model: PreTrainedModel, dialect: Dialect, widest_step: int) -> None:
        super().__init__()
        self.model = model
        self.dialect = dialect
        self.widest_step = widest_step
        self.accepted = inspect.signature(model.forward).parameters

    def forward(self, tokens: Tensor, position: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        columns, past = (None, rest) if self.dialect == "ort" else (rest[0], rest[1:])
        cache = StaticCache(position, list(zip(past[::2], past[1::2], strict=True)), columns)
        rows = kept_rows(tokens, self.widest_step, OPSETS[self.dialect])
        positions = (position + torch.arange(tokens.shape[1]))[None]
        options = {"position_ids": positions, "logits_to_keep": rows}
        options = {name: value for name, value in options.items() if name in self.accepted}
        with static_cache_attention(self.model, cache, self.dialect):
            logits = self.model(input_ids=tokens, past_key_values=cache, use_cache=True, **options).logits
        if "logits_to_keep" not in options:
            logits = logits[:, rows]
        if len(cache.written) != len(cache.past):
            raise UnsupportedModelError(f"{len(cache.past) - len(cache.written)} of {len(cache.past)} layers attend by code of their own")
        return logits.float(), *(half for _, pair in sorted(cache.written.items()) for half in pair)


def kept_rows(tokens: Tensor, widest_step: int, opset: int) -> Tensor:
    """Rows whose logits are wanted, `[rows] int64`: all of a step, only the last of a prefill chunk.

    The true number is 1 for a chunk; tracing cannot say so, and takes it for the number of tokens.
    """
    width = symbolic("Shape", (tokens,), dict(start=1, end=2), dtype=torch.int64, shape=[1], version=opset)[0]
    first = torch.where(width > widest_step, width - 1, torch.zeros_like(width))
    return symbolic("Range", (first, width, torch.ones_like(width)), dtype=torch.int64, shape=[tokens.shape[1]], version=opset)


def _reason(model: PreTrainedModel, error: BaseException) -> UnsupportedModelError:
    """The refusal behind an exporter's error: ours, if one was raised on the way, else its first line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnsupportedModelError):
            return UnsupportedModelError(f"{type(model).__name__} cannot be exported: {cause}")
        innermost, cause = cause, cause.__cause__ or cause.__context__
    return UnsupportedModelError(f"{type(model).__name__} cannot be traced by torch.export: {first_line(innermost)}")


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's own warnings are of no use to the person who builds a bundle."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
