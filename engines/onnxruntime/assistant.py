"""A draft that attends to the target's caches and writes none (`Reads.caches`), on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..base import Logits, Rows, RunGraph
from .decoder import OrtDecoder
from .hidden import Floats, OrtReader


class AssistantReader(OrtReader):
    """cached `[T, all keys and values]`: rows of the caches, which a proof gives after the hidden states; None where
    the target wrote them. drafted: whether the next pass is of a drafted token.
    """

    cached: Floats | None = None
    drafted = False

    def read(self, hidden: Floats) -> None:
        width = self._hidden.shape[1]
        self.cached, self.drafted = hidden[:, width:] if hidden.shape[1] > width else None, False
        super().read(hidden[:, :width])

    def read_back(self) -> None:
        self.drafted = True
        super().read_back()


class OrtAssistant(OrtDecoder):
    """A pass of true rows is one of the last of them, if it is a step of one token: none depends on those before. All
    drafted tokens stand where the last true row does.
    """

    writes = False
    reader: AssistantReader
    _row = 0  # the last true one

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        if self.reader.drafted:
            return self._run(tokens, self._row, False)
        self._row = position + len(tokens) - 1
        self._write(position)
        return self._run(tokens, position, False)

    def feed(self, tokens: Sequence[int], position: int) -> None:
        """Nothing: the target's rows are there."""

    def read_rows(self, end: int) -> list[Rows]:
        return []

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        pass

    def _open_reader(self, fuse: RunGraph | None) -> AssistantReader:
        assert self.spec.reads is not None
        return AssistantReader(self.spec.reads, self._contract, fuse)

    def _write(self, position: int) -> None:
        """What a proof gave, of each layer `[T, num_kv_heads, head_dim]` in a row, the keys before the values."""
        if self.reader.cached is None:
            return
        sizes = [array.shape[1] * array.shape[3] for array in self._caches]
        parts: list[NDArray[np.float32]] = np.split(self.reader.cached, np.cumsum(sizes)[:-1], axis=1)
        for array, part in zip(self._caches, parts, strict=True):
            rows = part.reshape(len(part), array.shape[1], array.shape[3]).transpose(1, 0, 2)
            array[0, :, position : position + len(part)] = rows
