"""What stands in for the transformers cache while a model is traced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import UnsupportedModelError
from .recurrences import OpenStates, StateIndex
from .trees import Tree

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
