"""What a model does with its cache, its attention and its states, seen by running it.

What transformers calls the cache of a model: `past_key_values`, and `cache` from 5.24 on.

What a model gives its attention, seen in one pass: the shapes of the cache to be made.

Which states a model's layers keep, found by running two tokens: no names of config fields needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...bundle import State
from ...errors import UnsupportedModelError
from .attention import KeyValue, attention_by
from .recurrences import RECURRENCES, Recurrence
from .states import functions_of

OLD, NEW = "past_key_values", "cache"


def cache_argument(model: nn.Module) -> str:
    """The keyword of the model's forward that takes its cache. A model's own code may have the old one."""
    return NEW if NEW in inspect.signature(model.forward).parameters else OLD


def cache_of(output: Any) -> Any:
    """The cache that a model returned with its output; None if it has none."""
    fields = getattr(output, "__dict__", {})  # the old name is also a property, which logs that it is old
    return fields.get(NEW, fields.get(OLD))


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


def probe_states(model: PreTrainedModel, tokens: Tensor) -> tuple[Any, dict[int, tuple[State, ...]]]:
    """The model's output for `tokens [1, 2]`, and by layer the states that it keeps.

    Raises `UnsupportedModelError` for a recurrent state that none of the known functions makes.
    """
    seen: list[Recurrence] = []

    def recorded(kind: Callable[..., Recurrence], own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seen.append(kind(*args, **kwargs))
        return own(*args, **kwargs)

    with torch.no_grad(), functions_of(model, {name: partial(recorded, kind) for name, kind in RECURRENCES.items()}):
        output = model(input_ids=tokens, use_cache=True)
    recurrences = iter(seen)
    found: dict[int, tuple[State, ...]] = {}
    for index, layer in enumerate(getattr(cache_of(output), "layers", ())):
        states = []
        for place, inputs in _states(layer, "conv_states").items():
            states.append(State("window", (int(inputs.shape[-1]) - 1, int(inputs.shape[1])), place))
        for place, state in _states(layer, "recurrent_states").items():
            given = next(recurrences, None)
            if given is None or prod(given.state) != state.numel():
                raise UnsupportedModelError(
                    f"{type(model).__name__}: layer {index} keeps a recurrent state that no known function makes "
                    f"({', '.join(RECURRENCES)})"
                )
            states += [State("state", given.state, place), State("rows", (given.row,), place)]
        if states:
            found[index] = tuple(states)
    return output, found


def state_tensors(layer: Any) -> list[Tensor]:
    """Those that `probe_states` knows of a layer of the library's cache."""
    return [part for kind in ("conv_states", "recurrent_states") for part in _states(layer, kind).values()]


def _states(layer: Any, kind: str) -> dict[int, Tensor]:
    states = getattr(layer, kind, None)
    return {place: state for place, state in states.items() if state is not None} if isinstance(states, dict) else {}
