"""States beside keys and values, by their kind: short convolutions and linear recurrences.

Models of transformers ask their cache for states (`update_conv_state`, `update_recurrent_state`) and compute with
functions of their modules, of which there is one a kind. Both are replaced here while a model is traced: what is
emitted reads the rows that are still open, takes those that have become certain into the state, and computes the new
rows behind it. Nothing is known of architectures. docs/architecture.md, "States", has the contract.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.onnx.ops import symbolic, symbolic_multi_out
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from ...bundle import CacheLayer
from ...errors import UnsupportedModelError
from ..dialects import OPSETS
from .attention import StaticCache
from .recurrences import RECURRENCES, Recurrence

Place = tuple[int, int]  # a layer, and which of its states of one kind
VERSION = OPSETS["ort"]
END = torch.iinfo(torch.int64).max


@dataclass
class OpenStates:
    """The inputs that a graph has for states, and what it gives back.

    pending, certain: `[1] int64`, see `Contract`. past: by place and part, of the shapes of `State`.
    """

    pending: Tensor
    certain: Tensor
    window: int
    past: dict[Place, dict[str, Tensor]]
    present: dict[Place, dict[str, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, layers: tuple[CacheLayer, ...], window: int, counts: tuple[Tensor, ...], given: tuple[Tensor, ...]
    ) -> OpenStates:
        """counts: pending and certain. given: the states in the order of `ModelSpec.state_names`."""
        past: dict[Place, dict[str, Tensor]] = {}
        rest = iter(given)
        for index, layer in enumerate(layers):
            for state in layer.states:
                past.setdefault((index, state.index), {})[state.part] = next(rest)
        pending, certain = counts
        return cls(pending, certain, window, past)

    def in_order(self, layers: tuple[CacheLayer, ...]) -> list[Tensor]:
        """What the graph gives back, in the same order. Raises `UnsupportedModelError` where something is missing."""
        found = []
        for index, layer in enumerate(layers):
            for state in layer.states:
                part = self.present.get((index, state.index), {}).get(state.part)
                if part is None:
                    raise UnsupportedModelError(f"layer {index} advances its state by code of its own")
                found.append(part)
        return found


@dataclass
class StateCache(StaticCache):
    """A `StaticCache` of layers of which some keep states.

    A layer is told that it has no state yet: it then takes the one path that any number of tokens fits. Its functions
    are ours, and know the state. convolving, recurring: whose.
    """

    states: OpenStates | None = None
    convolving: Place | None = None
    recurring: Place | None = None

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        self.recurring = (layer_idx, state_idx)

    def update_conv_state(self, inputs: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        self.convolving = (layer_idx, state_idx)
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return state


def convolve(
    cache: StateCache,
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
    past, new = states.past[place]["window"], inputs.transpose(1, 2)
    ahead, length, channels = weight.shape[-1] - 1, new.shape[1], new.shape[2]
    new = new.to(past.dtype)
    behind = states.pending + ahead
    # The only one to read the past, so that the present, which lies in the same memory, is written behind it.
    joined = _concat(_rows(past, 0, behind, past.shape[1]), new)
    before = _rows(joined, states.pending, behind, ahead)
    states.present.setdefault(place, {})["window"] = _padded(states, _rows(joined, states.certain, END, length), past)
    fused = activation if activation in ("silu", "swish") else None
    output, _ = symbolic_multi_out(
        "com.microsoft::CausalConvWithState",
        (new, weight.unsqueeze(1).to(past.dtype), None if bias is None else bias.to(past.dtype), before),
        dict(activation=fused or "none", channels_last=1),
        dtypes=(past.dtype, past.dtype),
        shapes=((1, length, channels), (1, ahead, channels)),
        version=1,
    )
    result = output.transpose(1, 2).to(inputs.dtype)
    return result if fused or activation is None else ACT2FN[activation](result)


def advance(cache: StateCache, given: Recurrence) -> Tensor:
    """Outputs `[1, T, heads * value_dim]` fp32 of the new rows; the state takes in those rows that are certain."""
    states, place = cache.states, cache.recurring
    if states is None or place is None or "state" not in states.past.get(place, {}):
        raise UnsupportedModelError("a layer runs a recurrence without asking its cache for the state")
    cache.recurring = None
    past, new = states.past[place], torch.cat([part.float() for part in given.parts], -1)
    length, most = new.shape[1], states.window
    joined = _concat(_rows(past["rows"], 0, states.pending, most), new)
    taken, left = _rows(joined, 0, states.certain, most), _rows(joined, states.certain, END, length)
    first, state = _recur(given, taken, past["state"])
    second, _ = _recur(given, left, state)
    states.present.setdefault(place, {}).update(rows=_padded(states, left, past["rows"]), state=state)
    return _rows(_concat(first, second), states.pending, END, length)


def _recur(given: Recurrence, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs `[1, n, heads * value_dim]` of `rows [1, n, all parts]`, and the state behind them."""
    sizes = [part.shape[-1] for part in given.parts]
    query, key, value, decay, *beta = symbolic_multi_out(
        "Split",
        (rows, torch.tensor(sizes)),
        dict(axis=2),
        dtypes=[rows.dtype] * len(sizes),
        shapes=[(*rows.shape[:2], size) for size in sizes],
        version=VERSION,
    )
    output, after = symbolic_multi_out(
        "com.microsoft::LinearAttention",
        (query, key, value, state, decay, *beta),
        dict(q_num_heads=given.key_heads, kv_num_heads=given.heads, update_rule=given.update_rule, scale=given.scale),
        dtypes=(rows.dtype, state.dtype),
        shapes=((*rows.shape[:2], value.shape[-1]), state.shape),
        version=1,
    )
    return output, after


def _rows(values: Tensor, start: Tensor | int, end: Tensor | int, length: Any) -> Tensor:
    """Rows `start` to `end` of `values [1, n, width]`. length: how many that is, as far as tracing knows."""
    bounds = [torch.tensor([bound]) if isinstance(bound, int) else bound for bound in (start, end)]
    return symbolic(
        "Slice",
        (values, *bounds, torch.tensor([1])),
        dtype=values.dtype,
        shape=(1, length, values.shape[2]),
        version=VERSION,
    )


def _concat(first: Tensor, second: Tensor) -> Tensor:
    shape = (1, first.shape[1] + second.shape[1], first.shape[2])
    return symbolic("Concat", (first, second), dict(axis=1), dtype=first.dtype, shape=shape, version=VERSION)


def _padded(states: OpenStates, rows: Tensor, past: Tensor) -> Tensor:
    """As many rows as `past` has: what is open, and zeros behind."""
    width = symbolic("Shape", (rows,), dict(start=1, end=2), dtype=torch.int64, shape=[1], version=VERSION)
    none = torch.zeros(4, dtype=torch.int64)
    pads = torch.cat([none, past.shape[1] - width, none[:1]])
    return symbolic("Pad", (rows, pads), dtype=rows.dtype, shape=past.shape, version=VERSION)


@contextmanager
def functions_of(model: PreTrainedModel, replacements: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """While the context lasts, the model's modules call `replacements`, by name, instead of functions of their own.

    Each is called with the function that it replaces first.
    """
    files = {sys.modules[type(part).__module__] for part in model.modules()}
    with ExitStack() as stack:
        for file in files:
            for name, replacement in replacements.items():
                if (own := getattr(file, name, None)) is not None:
                    stack.enter_context(patch.object(file, name, partial(replacement, own)))
        yield


@contextmanager
def static_states(model: PreTrainedModel, cache: StateCache) -> Iterator[None]:
    """Route the model's convolutions and recurrences through `cache` while the context lasts."""

    def convolution(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        return convolve(cache, *args, **kwargs)

    def recurrence(kind: Callable[..., Recurrence], own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = kind(*args, **kwargs)
        place = cache.recurring
        output = given.finish(advance(cache, given))
        assert cache.states is not None
        assert place is not None
        return output, cache.states.present[place]["state"]

    kinds: dict[str, Callable[..., Any]] = {name: partial(recurrence, kind) for name, kind in RECURRENCES.items()}
    with functions_of(model, {"causal_conv1d_fn": convolution, **kinds}):
        yield
