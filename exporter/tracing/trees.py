"""Rows of one pass that hang together as a tree: each sees its own ancestors, wherever in the cache they lie.

Row i of a pass lies in cache row position + i, and in the text at position + depth[i]. A chain is the tree whose depths
are 0 to T - 1 and whose rows see all before them, so that one graph serves both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import UnsupportedModelError

DEPTH, ANCESTOR = "depth", "ancestor"
# The score of what is hidden: finite, because kernels that go by tiles subtract the largest score of a tile, and in the
# range of fp16, because a compiler may lower the softmax.
HIDDEN = torch.finfo(torch.float16).min


@dataclass
class Tree:
    """depth `[T] int64`; ancestor `[T, T] bool`: whether row i sees row j, itself included."""

    depth: Tensor
    ancestor: Tensor
    _bias: Tensor | None = field(default=None, init=False)

    def visible(self, places: Tensor, position: Tensor, window: int) -> Tensor:
        """`[T, C] bool`: which of what lies at the cache rows `places [C]` each row of the pass sees.

        window: tokens seen, 0 for all. It counts places in the text, not rows of the cache.
        """
        length = self.depth.shape[0]
        inside = places - position  # rows of this pass, from 0
        in_pass = inside.clamp(torch.zeros_like(position), torch.full_like(position, 1) * (length - 1))
        mine = self.ancestor.index_select(1, in_pass) & (inside < length)[None]
        mask = (inside < 0)[None] | mine
        if not window:
            return mask
        at = torch.where(inside < 0, places, position + self.depth.index_select(0, in_pass))
        return mask & (at[None] > (position + self.depth - window)[:, None])

    def bias(self, capacity: int, position: Tensor, dtype: torch.dtype) -> Tensor:
        """`[1, 1, T, capacity]`, added to the scores by an operator that itself hides what comes after each row.

        The same for every layer.
        """
        if self._bias is None:
            mask = self.visible(torch.arange(capacity), position, 0)
            self._bias = torch.where(mask, 0.0, HIDDEN).to(dtype)[None, None]
        return self._bias


def refuse_trees(model: str, has_states: bool, takes_positions: bool = True) -> None:
    """Raises `UnsupportedModelError` for a model whose rows cannot be told where in the text they lie.

    model: its architecture, for the message.
    """
    why = ""
    if has_states:
        why = "keeps recurrent or convolution states, which go on after one row only"
    elif not takes_positions:
        why = "takes no positions, and so numbers the rows of a tree as they lie in the cache"
    if why:
        raise UnsupportedModelError(f"{model} {why}; leave --tree-rows out")
