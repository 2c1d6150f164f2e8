"""What a graph is given for the states of its layers, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...bundle import CacheLayer, Contract
from ...errors import UnsupportedModelError

Place = tuple[int, int]  # a layer, and which of its states of one kind


@dataclass
class OpenStates:
    """The inputs that a graph has for states, and what it gives back.

    pending, certain: `[1] int64`, see `Contract`. window: rows that may be open. widest: tokens of the widest pass.
    past: by place and part, of the shapes of `State`. order: what an emitter computes once for all layers.
    """

    pending: Tensor
    certain: Tensor
    window: int
    widest: int
    past: dict[Place, dict[str, Tensor]]
    present: dict[Place, dict[str, Tensor]] = field(default_factory=dict)
    order: Any = None

    @classmethod
    def of(
        cls, layers: tuple[CacheLayer, ...], contract: Contract, counts: tuple[Tensor, ...], given: tuple[Tensor, ...]
    ) -> OpenStates:
        """counts: pending and certain. given: the states in the order of `ModelSpec.state_names`."""
        past: dict[Place, dict[str, Tensor]] = {}
        rest = iter(given)
        for index, layer in enumerate(layers):
            for state in layer.states:
                past.setdefault((index, state.index), {})[state.part] = next(rest)
        pending, certain = counts
        window = contract.widest_step
        return cls(pending, certain, window, max(window, contract.prompt_chunk), past)

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
