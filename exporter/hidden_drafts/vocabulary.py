"""The target's ids of a draft's tokens: from what EAGLE-3 checkpoints store of them, or the most frequent ones.

d2t `[m]`: offsets, the target's id of token i is i + d2t[i]. t2d `[V]`: which of the target's ids the draft has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from ...errors import CheckpointError

TABLES = ("d2t", "t2d")


def read_tables(source: str, stored: Mapping[str, tuple[Path, str, list[int]]]) -> dict[str, NDArray[np.generic]]:
    """Those of `TABLES` that are stored. Raises `CheckpointError` for numbers that are no integers."""
    tables = {}
    for name in (name for name in TABLES if name in stored):
        path, _, shape = stored[name]
        with safe_open(path, "np") as file:
            kind = file.get_slice(name).get_dtype()
            if kind[0] not in "IU" and kind != "BOOL":
                raise _wrong(f"{source} has a {name} of {shape} {kind}; expected whole numbers")
            tables[name] = file.get_tensor(name)
    return tables


def read_target_ids(
    source: str, tables: Mapping[str, NDArray[np.generic]], size: int, vocab_size: int
) -> NDArray[np.int64] | None:
    """`[m]`; None where both have the same ids. tables: as `read_tables`. size: m. vocab_size: V.

    Raises `CheckpointError` for tables that do not agree, or name no tokens of the target's.
    """
    d2t, t2d = map(tables.get, TABLES)
    if d2t is None:
        if size == vocab_size and (t2d is None or t2d.all()):
            return None
        raise _wrong(f"{source} drafts with {size} of {vocab_size} tokens, and has no d2t that says which")
    if d2t.shape != (size,):
        raise _wrong(f"{source} has a d2t of {list(d2t.shape)}; expected {size} tokens")
    places = np.arange(size)
    ids = places + d2t.astype(np.int64)
    if len(beyond := np.flatnonzero((ids < 0) | (ids >= vocab_size))):
        raise _wrong(
            f"{source} has a d2t that maps draft token {int(beyond[0])} beyond the vocabulary, to "
            f"{int(ids[beyond[0]])} of {vocab_size}"
        )
    counts = np.bincount(ids, minlength=vocab_size)
    if len(several := np.flatnonzero(counts > 1)):
        raise _wrong(f"{source} has a d2t that maps several draft tokens to token {int(several[0])} of the target")
    if t2d is None:
        if size < vocab_size and size > 1 and np.array_equal(d2t, places):
            raise _wrong(f"{source} has a d2t of 0, 1, 2, ..., which was never set; expected offsets")
    else:
        if t2d.shape != (vocab_size,):
            raise _wrong(f"{source} has a t2d of {list(t2d.shape)}; expected {vocab_size} tokens")
        if len(other := np.flatnonzero(counts.astype(bool) != t2d.astype(bool))):
            raise _wrong(f"{source} has a d2t and a t2d that do not agree on token {int(other[0])} of the target")
    return None if size == vocab_size and np.array_equal(ids, places) else ids


def _wrong(message: str) -> CheckpointError:
    return CheckpointError(f"{message}; export or download the draft again", "draft")


def most_frequent(tokens: Iterable[int], size: int, always: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """`size` of the target's ids, in their order: those in `always`, and the most frequent of `tokens`; of equally
    frequent ones, the smaller.
    """
    counts, kept = Counter(tokens), {token for token in always if token < vocab_size}
    order = sorted(set(range(vocab_size)) - kept, key=lambda token: (-counts[token], token))
    return tuple(sorted([*kept, *order[: max(0, size - len(kept))]]))
