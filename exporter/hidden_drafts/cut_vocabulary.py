"""A draft that proposes only the most frequent tokens: on a CPU, the output embedding is most of what an MTP layer
reads. What it cannot propose has probability 0 in its distribution, and the rules stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .base import HiddenDraft


def most_frequent(tokens: Iterable[int], size: int, always: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """`size` of the target's ids, in their order: those in `always`, and the most frequent of `tokens`; of equally
    frequent ones, the smaller.
    """
    counts, kept = Counter(tokens), {token for token in always if token < vocab_size}
    order = sorted(set(range(vocab_size)) - kept, key=lambda token: (-counts[token], token))
    return tuple(sorted([*kept, *order[: max(0, size - len(kept))]]))


def cut_head(draft: HiddenDraft, ids: Iterable[int]) -> None:
    """Keep only these rows of the output embedding, which is the target's. In place."""
    kept = torch.tensor(list(ids))
    draft.lm_head, draft.target_ids = _rows(draft.lm_head, kept), kept


def _rows(linear: nn.Linear, kept: Tensor) -> nn.Linear:
    weight = linear.weight.data[kept]
    cut = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None, device="meta")
    cut.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        cut.bias = nn.Parameter(linear.bias.data[kept], requires_grad=False)
    return cut
