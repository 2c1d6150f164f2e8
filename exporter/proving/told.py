"""What a graph's products gave for the rows that a model is fed in a pass: those of the pass, or of the whole sequence.

A model over a cache is fed the rows of the pass. One whose states cannot be rolled back is fed all rows again, and is
told of the earlier ones what the graph gave for them when it took them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tapped = Mapping[str, NDArray[Any]]


class Told:
    """kept: names of values whose rows are kept beyond a pass, for sequences of up to `longest` tokens.

    fed: how many tokens the model is fed.
    """

    def __init__(self, kept: frozenset[str] = frozenset(), longest: int = 0) -> None:
        self._longest = longest
        self._kept: dict[str, NDArray[Any] | None] = dict.fromkeys(kept)
        self._new: Tapped = {}
        self._end = self.fed = 0

    def take(self, tapped: Tapped, position: int, width: int) -> None:
        """What the graph gave in a pass of `width` tokens after `position` rows. Later rows than these are dropped."""
        self._new, self._end = tapped, position + width
        self.fed = self._end if self._longest else width
        for name, array in self._kept.items():
            values = rows(tapped[name])
            each = max(1, len(values) // width)  # a token has a row for each of its experts
            if array is None:
                self._kept[name] = array = np.zeros((self._longest * each, values.shape[1]), values.dtype)
            array[each * self._end - len(values) : each * self._end] = values

    def of_pass(self, name: str) -> NDArray[Any]:
        """Rows `[n, N]` of the pass."""
        return rows(self._new[name])

    def of_fed(self, name: str) -> NDArray[Any]:
        """Rows of all tokens that the model is fed, or of the last of them."""
        array = self._kept.get(name)
        return self.of_pass(name) if array is None else array[: self._end * (len(array) // self._longest)]


def rows(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
