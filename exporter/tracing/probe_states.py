"""Which states a model's layers keep, found by running two tokens: no names of config fields needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...bundle import State
from ...errors import UnsupportedModelError
from .cache_argument import cache_of
from .recurrences import RECURRENCES, Recurrence
from .states import functions_of


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
