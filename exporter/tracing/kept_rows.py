"""Rows of a pass whose logits are wanted: all of a step, only the last of a chunk of a prompt.

The true number is 1 for a chunk; tracing cannot say so, and takes it for the number of tokens. The other rows of a
chunk are there for the keys and values that they leave. So layers after the last of those are not computed for them:
those of Gemma 3n and 4 that read the keys and values of other layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.onnx.ops import symbolic

from ..weights.layers import hooked
from .static_cache import StaticCache


@dataclass(frozen=True)
class KeptRows:
    """tokens: `[1, T]`, of the pass. widest_step: the most tokens of a step."""

    tokens: Tensor
    widest_step: int
    opset: int

    @property
    def _width(self) -> Tensor:
        return symbolic("Shape", (self.tokens,), dict(start=1, end=2), dtype=torch.int64, shape=[1], version=self.opset)

    @property
    def first(self) -> Tensor:
        """`[1] int64`."""
        width = self._width
        return torch.where(width > self.widest_step, width - 1, torch.zeros_like(width))

    @property
    def numbers(self) -> Tensor:
        """`[rows] int64`."""
        width, rows = self._width[0], [self.tokens.shape[1]]
        bounds = (self.first[0], width, torch.ones_like(width))
        return symbolic("Range", bounds, dtype=torch.int64, shape=rows, version=self.opset)

    def of(self, values: Tensor, axis: int = 1) -> Tensor:
        """Those of `values`, whose rows are along `axis`, by one Slice, whose start stays on the host. Kept rows stay
        what they are: the start counts from the end.
        """
        width = self._width
        first = torch.where(width > self.widest_step, torch.full_like(width, -1), torch.zeros_like(width))
        # No steps: given them, the rule that drops slices of the whole would go by the shape.
        bounds = (first, torch.tensor([torch.iinfo(torch.int64).max]), torch.tensor([axis]))
        return symbolic("Slice", (values, *bounds), dtype=values.dtype, shape=values.shape, version=self.opset)

    def of_argument(self, argument: Any) -> Any:
        """Of what a layer is given with a row for each token: tensors, and tuples of them.

        Dicts are not looked into, such as that of the keys and values that layers share.
        """
        if isinstance(argument, tuple):
            return tuple(self.of_argument(part) for part in argument)
        if not isinstance(argument, Tensor):
            return argument
        count = self.tokens.shape[1]
        axes = [axis for axis, size in enumerate(argument.shape) if statically_known_true(size == count)]
        return self.of(argument, axes[0]) if len(axes) == 1 else argument


@contextmanager
def kept_after_last_cache(layers: nn.ModuleList, cache: StaticCache, rows: KeptRows) -> Iterator[None]:
    """Those of `layers` that a pass in the context reaches when all caches are written compute the kept rows alone."""
    moved = False

    def before(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        nonlocal moved
        if len(cache.written) < len(cache.past):
            return None
        if not moved:
            cache.position, moved = cache.position + rows.first, True
            return rows.of_argument(given), {name: rows.of_argument(option) for name, option in options.items()}
        # A layer before this one gave the kept rows: another Slice would come between a sum and its norm.
        state, rest = given[:1], rows.of_argument(given[1:])
        return (*state, *rest), {
            name: option if name == "hidden_states" else rows.of_argument(option) for name, option in options.items()
        }

    with hooked(layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers):
        yield
