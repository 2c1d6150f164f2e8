"""The target's ids of a draft's tokens, from what EAGLE-3 checkpoints store of them.

d2t `[m]`: offsets, the target's id of token i is i + d2t[i]. t2d `[V]`: which of the target's ids the draft has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import CheckpointError


def read_target_ids(source: str, d2t: Tensor | None, t2d: Tensor | None, size: int, vocab_size: int) -> Tensor | None:
    """`[m] int64`; None where both have the same ids. size: m. vocab_size: V.

    Raises `CheckpointError` for tables that do not agree, or name no tokens of the target's.
    """
    if d2t is None:
        if size == vocab_size and (t2d is None or bool(t2d.bool().all())):
            return None
        raise _wrong(f"{source} drafts with {size} of {vocab_size} tokens, and has no d2t that says which")
    if d2t.shape != (size,) or d2t.is_floating_point():
        raise _wrong(f"{source} has a d2t of {list(d2t.shape)} {d2t.dtype}; expected {size} whole numbers")
    places = torch.arange(size)
    ids = places + d2t.long()
    if len(beyond := ((ids < 0) | (ids >= vocab_size)).nonzero()):
        raise _wrong(
            f"{source} has a d2t that maps draft token {int(beyond[0])} beyond the vocabulary, to "
            f"{int(ids[beyond[0]])} of {vocab_size}"
        )
    counts = torch.bincount(ids, minlength=vocab_size)
    if len(several := (counts > 1).nonzero()):
        raise _wrong(f"{source} has a d2t that maps several draft tokens to token {int(several[0])} of the target")
    if t2d is None:
        if size < vocab_size and size > 1 and torch.equal(d2t.long(), places):
            raise _wrong(f"{source} has a d2t of 0, 1, 2, ..., which was never set")
    else:
        if t2d.shape != (vocab_size,):
            raise _wrong(f"{source} has a t2d of {list(t2d.shape)}; expected {vocab_size} tokens")
        if len(other := (counts.bool() != t2d.bool()).nonzero()):
            raise _wrong(f"{source} has a d2t and a t2d that do not agree on token {int(other[0])} of the target")
    return None if size == vocab_size and torch.equal(ids, places) else ids


def _wrong(message: str) -> CheckpointError:
    return CheckpointError(f"{message}; download the draft again", "draft")
