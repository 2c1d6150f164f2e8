"""The cache of a draft that reads the target's hidden states, and those that it has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Logits, Reader
from .cached_decoder import CachedDecoder


@dataclass
class HiddenDecoder(CachedDecoder):
    """Row i of its cache is of (h_i, x_{i+1}), the target's hidden states of token i and the token after it.

    So `tokens[:n]` have n - 1 rows at most. rows: those written of true hidden states; what the draft writes after them
    while it drafts is overwritten by true ones. The hidden states of the rows that follow wait until the draft runs, or
    until there are as many as a prompt chunk.

    reader: takes the hidden states of the next pass. columns: those that this draft reads of the target's, None for all
    in their order. width: F, of the target's.
    """

    reader: Reader = field(kw_only=True)
    width: int = field(kw_only=True)
    columns: NDArray[np.int64] | None = None
    ahead: int = 1

    def __post_init__(self) -> None:
        self._waiting = np.zeros((max(self.chunk, self.widest), self.width), np.float32)
        self._count = 0

    @property
    def reach(self) -> int:
        """How many rows there are, written or waiting."""
        return self.rows + self._count

    def keep(self, rows: int) -> None:
        self._count = max(0, min(self.reach, rows) - self.rows)
        super().keep(rows)

    def resume(self, rows: int) -> None:
        self._count = 0  # of rows that follow others
        super().resume(rows)

    def take(self, tokens: Sequence[int], position: int, hidden: NDArray[np.float32]) -> None:
        """The target's hidden states `[T, F]` of the rows from `position` on, whose next tokens are in `tokens`.

        Those after a gap are dropped: without the rows before them they are of no use.
        """
        new = hidden[max(0, self.reach - position) :]
        if position > self.reach or not len(new):
            return
        for start in range(0, len(new), len(self._waiting)):  # a verify pass may be wider than a prompt chunk
            part = new[start : start + len(self._waiting)]
            if self._count + len(part) > len(self._waiting):
                self.catch_up(tokens, self.reach)
            self._waiting[self._count : self._count + len(part)] = part
            self._count += len(part)

    def prefill(self, tokens: Sequence[int], end: int) -> None:
        """Write the rows up to `end` whose hidden states are there."""
        self.catch_up(tokens, min(end, self.reach))

    def catch_up(self, tokens: Sequence[int], end: int) -> None:
        """Write the rows up to `end`, which wait: a pass or two, so a round's tokens are not lost to a cancellation."""
        while self.rows < end:
            count = min(self.chunk, end - self.rows)
            self.reader.read(self._states(count))
            self.decoder.feed(tokens[self.rows + 1 : self.rows + 1 + count], self.rows)
            self.wrote(count)

    def missing(self, tokens: Sequence[int], at_once: int) -> NDArray[np.float32] | None:
        """The hidden states of the last rows of `tokens`, `at_once` or fewer; those before them are written now.

        None where hidden states are missing, or none is left to read.
        """
        end = len(tokens) - 1
        if self.reach != end or not self._count:
            return None
        self.catch_up(tokens, end - min(at_once, self._count))
        return self._states(self._count)

    def first(self, tokens: Sequence[int], at_once: int) -> Logits | None:
        """Write the rows of `tokens` that are missing; the logits of the last `at_once` or fewer of them, in rows.

        The last is of the first draft token. None as of `missing`.
        """
        states = self.missing(tokens, at_once)
        if states is None:
            return None
        self.reader.read(states)
        logits = self.decoder.step(tokens[self.rows + 1 :], self.rows)
        self.wrote(len(states))
        return logits

    def next(self, token: int, position: int) -> Logits:
        """The logits after `token`, which was drafted; its row reads what the row before it gave back."""
        self.reader.read_back()
        return self.decoder.step([token], position)

    def _states(self, count: int) -> NDArray[np.float32]:
        waiting = self._waiting[:count]
        return waiting if self.columns is None else waiting[:, self.columns]

    def wrote(self, count: int) -> None:
        """The first `count` rows that waited are written."""
        self.rows += count
        self._count -= count
        self._waiting[: self._count] = self._waiting[count : count + self._count].copy()
