"""A draft's output layer with fewer rows: of the tokens that it may propose.

Published as VocabTrim and FR-Spec (arXiv 2506.22694, 2502.14856). The embeddings stay whole, since the draft reads all
tokens. Its graph gives -inf for the others, so a draft's distribution has no mass there, and what a round emits stays
the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import UnsupportedModelError


class KeptTokens:
    """ids: in rising order, of the `size` that the model has logits for."""

    def __init__(self, ids: Sequence[int], size: int) -> None:
        self.ids, self.size = torch.tensor(ids), size

    @cached_property
    def rows(self) -> Tensor:
        """`[size] int64`: the row of each token in the cut layer, n for tokens that have none of the n."""
        rows = torch.full((self.size,), len(self.ids))
        rows[self.ids] = torch.arange(len(self.ids))
        return rows

    def trim(self, model: PreTrainedModel) -> None:
        """Put an output layer of the kept rows into `model`. Raises `UnsupportedModelError`."""
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise UnsupportedModelError(
                f"{type(model).__name__} has an output layer of type {type(head).__name__}, expected a linear one; "
                "leave --draft-vocabulary out"
            )
        cut = nn.Linear(head.in_features, len(self.ids), head.bias is not None, dtype=head.weight.dtype)
        cut.weight = nn.Parameter(head.weight.data[self.ids].clone(), requires_grad=False)
        if head.bias is not None:
            cut.bias = nn.Parameter(head.bias.data[self.ids].clone(), requires_grad=False)
        model.set_output_embeddings(cut)

    def spread(self, logits: Tensor, rows: Tensor) -> Tensor:
        """`[..., size] fp32` from `[..., n] fp32`, -inf for tokens that were not kept. rows: `self.rows`."""
        nothing = torch.full_like(logits[..., :1], -torch.inf)
        return torch.cat([logits, nothing], -1).index_select(-1, rows)

    def spread_rows(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same, of `[rows, n]`."""
        wide = np.full((len(logits), self.size), -np.inf, np.float32)
        wide[:, self.ids.numpy()] = logits
        return wide
