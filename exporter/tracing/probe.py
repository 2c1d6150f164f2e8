"""What a model does with its cache, attention and states, seen by running two tokens; no config field is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...bundle import State
from ...errors import UnsupportedModelError
from .attention import attention_by
from .recurrences import RECURRENCES, Recurrence
from .states import functions_of
from .static_cache import KeyValue

# What transformers calls the cache of a model, before 5.24 and from then on.
OLD, NEW = "past_key_values", "cache"


def cache_argument(model: nn.Module) -> str:
    """The keyword of the model's forward that takes its cache. A model's own code may have the old one."""
    return NEW if NEW in inspect.signature(model.forward).parameters else OLD


def cache_of(output: Any) -> Any:
    """The cache that a model returned with its output; None if it has none."""
    fields = getattr(output, "__dict__", {})  # the old name is also a property, which logs that it is old
    return fields.get(NEW, fields.get(OLD))


def custom_attention_reason(layers: int, of: int) -> str:
    """Why a model is refused."""
    which = "its layers compute" if layers == of else f"{layers} of its {of} layers compute"
    return (
        f"{which} attention in code of the model's own; expected transformers' attention interface: choose a model of "
        "another family"
    )


def seen_by_attention(model: PreTrainedModel, tokens: Tensor) -> tuple[dict[int, KeyValue], bool]:
    """By layer the keys and values that the model's attention is given for `tokens [1, T]`; whether the pass came to
    its end: if not, as with code that fails without a mask, the layers that come later are missing.

    They are `[1, num_kv_heads, T, width]`, each of its own width; a cache of transformers may hold them compressed.
    The number is the layer's own, which may differ from its place in the cache. A layer with code of its own is not
    among them.
    """
    seen, whole = dict[int, KeyValue](), False

    def attention(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any
    ) -> Any:
        seen[int(getattr(module, "layer_idx", len(seen)))] = key, value
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    with torch.no_grad(), attention_by(model, attention), suppress(Exception):  # the trace tells what is wrong
        model(input_ids=tokens, use_cache=True)
        whole = True
    return seen, whole


def probe_states(model: PreTrainedModel, tokens: Tensor) -> tuple[Any, dict[int, tuple[State, ...]]]:
    """The model's output for `tokens [1, 2]`, and by layer the states that it keeps.

    Raises `UnsupportedModelError` for a recurrent state that none of the known functions makes.
    """
    seen: list[Recurrence] = []

    def recorded(kind: Callable[..., Recurrence], replaced: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seen.append(kind(*args, **kwargs))
        return replaced(*args, **kwargs)

    with torch.no_grad(), functions_of(model, {name: partial(recorded, kind) for name, kind in RECURRENCES.items()}):
        output = model(input_ids=tokens, use_cache=True)
    recurrences = iter(seen)
    states_of: dict[int, tuple[State, ...]] = {}
    for index, layer in enumerate(getattr(cache_of(output), "layers", ())):
        states = []
        for place, inputs in _states(layer, "conv_states").items():
            states.append(State("window", (int(inputs.shape[-1]) - 1, int(inputs.shape[1])), place))
        for place, state in _states(layer, "recurrent_states").items():
            recurrence = next(recurrences, None)
            if recurrence is None or prod(recurrence.state) != state.numel():
                raise UnsupportedModelError(
                    f"{type(model).__name__}: layer {index} keeps a recurrent state that no known function makes "
                    f"({', '.join(RECURRENCES)})"
                )
            states += [State("state", recurrence.state, place), State("rows", (recurrence.row,), place)]
        if states:
            states_of[index] = tuple(states)
    return output, states_of


def state_tensors(layer: Any) -> list[Tensor]:
    """Those that `probe_states` knows of a layer of the library's cache."""
    return [part for kind in ("conv_states", "recurrent_states") for part in _states(layer, kind).values()]


def _states(layer: Any, kind: str) -> dict[int, Tensor]:
    states = getattr(layer, kind, None)
    return {place: state for place, state in states.items() if state is not None} if isinstance(states, dict) else {}
