"""Cache rows of earlier sequences, kept on the host: conversations in turn prefill no more than each turn's new tokens.

A sequence is saved when another one is about to overwrite its rows, so that a conversation which goes on alone costs
nothing. Entries are found by their exact tokens and their salt; rows that come back are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.base import Decoder, Rows
from ...engines.catalogue import ENGINES

# A sequence is saved where what would be lost takes as long to compute as copying all of it. Computing a row takes 25
# to 28 times as long as copying it out and back on a CPU (`benchmarks/conversations.py`); devices were not measured.
COMPUTED_OVER_COPIED = 16
USUAL_BUDGET = 512 << 20


def usual_budget(engine: str) -> int:
    """Bytes, for who gives no number. Nothing on devices, where nobody has measured what copies cost."""
    return 0 if ENGINES[engine].on_gpu else USUAL_BUDGET


@dataclass(frozen=True, eq=False)
class Saved:
    """tokens: whose rows they are. rows: by decoder. counts: how many of each."""

    tokens: tuple[int, ...]
    salt: str | None
    rows: tuple[Sequence[Rows], ...]
    counts: tuple[int, ...]
    size: int

    def shared(self, tokens: Sequence[int], salt: str | None) -> int:
        return shared_prefix(self.tokens, tokens) if salt == self.salt else 0


class Conversations:
    """Least recently used ones go first.

    budget: bytes. row_bytes: of a row of each decoder's caches.
    """

    def __init__(self, budget: int, row_bytes: Sequence[int]) -> None:
        self._budget, self._row_bytes = budget, tuple(row_bytes)
        self._saved: list[Saved] = []  # the most recently used last

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return sum(saved.size for saved in self._saved)

    def save(self, tokens: Sequence[int], salt: str | None, decoders: Sequence[tuple[Decoder, int]], kept: int) -> None:
        """Copy the rows of `tokens` from `decoders`, each with the number of rows it holds, the target's first.

        kept: how many of the rows stay where they are. Of a sequence beyond the budget, as many rows as fit.
        """
        most = self._budget // sum(self._row_bytes)
        counts = [min(rows, most, len(tokens)) for _, rows in decoders]
        whole = counts[0]
        if (whole - kept) * COMPUTED_OVER_COPIED < whole or whole <= kept:
            return
        own = tuple(tokens[:whole])
        for saved in self._saved:
            if saved.shared(own, salt) == whole:  # it has all of this
                self._use(saved)
                return
        self._saved = [saved for saved in self._saved if saved.shared(own, salt) < len(saved.tokens)]
        size = sum(count * row_bytes for count, row_bytes in zip(counts, self._row_bytes, strict=True))
        while self._saved and self.size + size > self._budget:
            del self._saved[0]
        rows = tuple(decoder.read_rows(count) for (decoder, _), count in zip(decoders, counts, strict=True))
        self._saved.append(Saved(own, salt, rows, tuple(counts), size))

    def longest(self, tokens: Sequence[int], salt: str | None) -> tuple[Saved | None, int]:
        """The entry that shares the longest prefix with `tokens`, and its length."""
        best, most = None, 0
        for saved in self._saved:
            shared = saved.shared(tokens, salt)
            if shared >= most and shared:
                best, most = saved, shared
        if best is not None:
            self._use(best)
        return best, most

    def clear(self) -> None:
        self._saved.clear()

    def _use(self, saved: Saved) -> None:
        self._saved.remove(saved)
        self._saved.append(saved)


def shared_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return min(len(ours), len(theirs))
