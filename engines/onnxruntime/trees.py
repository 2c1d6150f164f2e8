"""The inputs that make a pass a tree, `depth` and `ancestor`, in numpy arrays bound once per width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEPTH, ANCESTOR = "depth", "ancestor"


class OrtTrees:
    """The tree inputs of all widths; each is a chain except within `as_tree`."""

    def __init__(self) -> None:
        self._by_width: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}

    def bind(self, io: Any, value: Any, width: int) -> None:
        """value: makes an OrtValue that aliases an array."""
        if width not in self._by_width:  # shared by all spans
            self._by_width[width] = np.arange(width), np.tri(width, dtype=np.bool_)
        depth, ancestor = self._by_width[width]
        io.bind_ortvalue_input(DEPTH, value(depth))
        io.bind_ortvalue_input(ANCESTOR, value(ancestor))

    def forget(self, width: int) -> None:
        """Nothing is bound for this width any more."""
        self._by_width.pop(width, None)

    @contextmanager
    def as_tree(self, width: int, parents: Sequence[int]) -> Iterator[None]:
        """Within the context, the last rows of a pass of `width` rows follow the rows `parents`, which are earlier."""
        depth, ancestor = self._by_width[width]
        try:
            for row, parent in enumerate(parents, start=width - len(parents)):
                depth[row] = depth[parent] + 1
                ancestor[row] = ancestor[parent]
                ancestor[row, row] = True
            yield
        finally:
            depth[:], ancestor[:] = np.arange(width), np.tri(width, dtype=np.bool_)
