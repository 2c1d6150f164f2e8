"""States other than keys and values, by their kind: short convolutions and linear recurrences.

Models of transformers ask their cache for states (`update_conv_state`, `update_recurrent_state`) and compute with
functions of their modules, of which there is one a kind. Both are replaced here while a model is traced: what is
emitted reads the rows that are still open, takes those that have become certain into the state, and computes the new
rows after it. Nothing is known of architectures. docs/architecture.md, "States", has the contract.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from ...errors import UnsupportedModelError
from ..dialects import Dialect
from . import ort_states, standard_states
from .recurrences import RECURRENCES, Recurrence
from .static_cache import StaticCache

# What emits `convolve` and `advance` in a dialect.
EMITTERS: dict[Dialect, ModuleType] = {"kernels": ort_states, "onnx": standard_states, "ort": ort_states}
FUSED = ("silu", "swish")  # the activation of a convolution that ONNX Runtime's operator has


def convolve(
    cache: StaticCache,
    dialect: Dialect,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> Tensor:
    """`causal_conv1d_fn`: inputs `[1, channels, T]`, weight `[channels, rows]` -> `[1, channels, T]`."""
    states, place = cache.states, cache.convolving
    if states is None or place is None or "window" not in states.past.get(place, {}):
        raise UnsupportedModelError("a layer convolves without telling its cache")
    cache.convolving = None
    past = states.past[place]["window"]
    new, weight = inputs.transpose(1, 2).to(past.dtype), weight.to(past.dtype)
    bias = None if bias is None else bias.to(past.dtype)
    fused = "silu" if activation in FUSED else None
    output, present = EMITTERS[dialect].convolve(states, past, new, weight, bias, fused)
    states.present.setdefault(place, {})["window"] = present
    result: Tensor = output.transpose(1, 2).to(inputs.dtype)
    return result if fused or activation is None else ACT2FN[activation](result)


def advance(cache: StaticCache, dialect: Dialect, recurrence: Recurrence) -> Tensor:
    """Outputs `[1, T, heads * value_dim]` fp32 of the new rows; the state takes in those rows that are certain."""
    states, place = cache.states, cache.recurring
    if states is None or place is None or "state" not in states.past.get(place, {}):
        raise UnsupportedModelError("a layer runs a recurrence without asking its cache for the state")
    cache.recurring = None
    new = torch.cat([part.float() for part in recurrence.parts], -1)
    output: Tensor
    output, rows, state = EMITTERS[dialect].advance(states, states.past[place], new, recurrence)
    states.present.setdefault(place, {}).update(rows=rows, state=state)
    return output


@contextmanager
def functions_of(model: PreTrainedModel, replacements: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """While the context lasts, the model's modules call `replacements`, by name, instead of their functions.

    Each is called with the function that it replaces first.
    """
    files = {sys.modules[type(part).__module__] for part in model.modules()}
    with ExitStack() as stack:
        for file in files:
            for name, replacement in replacements.items():
                if (replaced := getattr(file, name, None)) is not None:
                    stack.enter_context(patch.object(file, name, partial(replacement, replaced)))
        yield


@contextmanager
def static_states(model: PreTrainedModel, cache: StaticCache, dialect: Dialect) -> Iterator[None]:
    """Route the model's convolutions and recurrences through `dialect` and `cache` while the context lasts."""

    def convolution(replaced: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        return convolve(cache, dialect, *args, **kwargs)

    def recur(kind: Callable[..., Recurrence], replaced: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        recurrence = kind(*args, **kwargs)
        place = cache.recurring
        output = recurrence.finish(advance(cache, dialect, recurrence))
        assert cache.states is not None
        assert place is not None
        return output, cache.states.present[place]["state"]

    kinds: dict[str, Callable[..., Any]] = {name: partial(recur, kind) for name, kind in RECURRENCES.items()}
    with functions_of(model, {"causal_conv1d_fn": convolution, **kinds}):
        yield
