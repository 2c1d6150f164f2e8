"""The maps between the ids of a draft and those of its target, as the bundle has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..bundle import SharedVocabulary
from ..errors import BundleError


def load_maps(
    path: Path, vocabulary: SharedVocabulary, target_size: int, draft_size: int, read_size: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`to_draft [target vocab]`, the draft's id for each of the target's; `shared [2, n]`, the target's and the draft's
    id of the tokens that both have. read_size: tokens that the draft can read, by default as many as it can propose.

    Raises `BundleError` when they are not what the manifest says.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            to_draft, shared = arrays["to_draft"], arrays["shared"]
    except Exception as error:  # whatever numpy's and zipfile's readers raise on a damaged file
        raise BundleError(f"{path} does not hold maps of token ids: {error}; build the bundle again") from None
    fits = to_draft.shape == (target_size,) and shared.shape == (2, vocabulary.shared_tokens) and shared.size > 0
    if not fits or to_draft.dtype != np.int64 or shared.dtype != np.int64:
        raise BundleError(
            f"{path} maps {to_draft.shape} and {shared.shape} ids, the manifest says otherwise; build the bundle again"
        )
    for ids, size in ((to_draft, read_size or draft_size), (shared[0], target_size), (shared[1], draft_size)):
        outside = ids[(ids < 0) | (ids >= size)]
        if outside.size:
            raise BundleError(f"{path} names token {outside[0]} of {size}; build the bundle again")
    return to_draft, shared
