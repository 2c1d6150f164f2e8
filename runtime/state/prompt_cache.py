"""Cache rows of earlier sequences, kept on the host: conversations in turn prefill only each turn's new tokens.

A sequence is saved when another one is about to overwrite its rows, so a conversation that continues alone costs
nothing. States, which cannot be rolled back, are copied at places where a later prompt may continue. Entries are found
by their exact tokens and their salt, and rows are restored bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.base import Decoder, Rows, SavedStates
from ...engines.catalogue import ENGINES

# A sequence is saved if what would be lost takes as long to compute as copying all of it. Computing a row takes 25 to
# 36 times as long as copying it out and back on a CPU; devices were not measured.
RECOMPUTE_OVER_COPY = 16
USUAL_BUDGET = 512 << 20
# Kept per sequence and decoder: the ends of two prompts and of two turns, for templates that rewrite the last turn.
# Places that several sequences share come on top.
MAX_CHECKPOINTS = 4


def usual_budget(engine: str) -> int:
    """Default number of bytes. None on devices, where the cost of copies has not been measured."""
    return 0 if ENGINES[engine].on_gpu else USUAL_BUDGET


@dataclass(frozen=True, eq=False)
class StateCheckpoint:
    """States of one decoder after `tokens`, and after the few rows before their end that are still open.

    decoder: its number, 0 for the target. shared: sequences diverge here, as after a system prompt. size: bytes.
    """

    decoder: int
    tokens: tuple[int, ...]
    salt: str | None
    states: SavedStates
    shared: bool
    size: int

    def on_the_way(self, decoder: int, tokens: tuple[int, ...], salt: str | None) -> bool:
        """Whether `tokens` begin with all of its tokens."""
        return decoder == self.decoder and salt == self.salt and tokens[: len(self.tokens)] == self.tokens

    def reach(self, decoder: int, tokens: tuple[int, ...], salt: str | None) -> int:
        """After how many of `tokens` a pass can continue, 0 for none."""
        start = self.states.start
        if decoder != self.decoder or salt != self.salt or tokens[:start] != self.tokens[:start]:
            return 0
        return start + shared_prefix(self.tokens[start:], tokens[start:])


def shared_prefix(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """The number of leading tokens, or letters, that both share."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return min(len(ours), len(theirs))


@dataclass(frozen=True, eq=False)
class Saved:
    """tokens: those of the rows. rows: by decoder. counts: number of rows of each."""

    tokens: tuple[int, ...]
    salt: str | None
    rows: tuple[Sequence[Rows], ...]
    counts: tuple[int, ...]
    size: int

    def shared(self, tokens: Sequence[int], salt: str | None) -> int:
        return shared_prefix(self.tokens, tokens) if salt == self.salt else 0


class PromptCache:
    """The least recently used entries are dropped first.

    budget: bytes. row_bytes: size of a row of each decoder's caches; state_bytes: of each decoder's states, 0 for none.
    """

    def __init__(self, budget: int, row_bytes: Sequence[int], state_bytes: Sequence[int] = (0, 0)) -> None:
        self._budget, self._row_bytes, self._state_bytes = budget, tuple(row_bytes), tuple(state_bytes)
        self._held: list[Saved | StateCheckpoint] = []  # the most recently used last

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self._held)

    @property
    def _saved(self) -> list[Saved]:
        return [entry for entry in self._held if isinstance(entry, Saved)]

    @property
    def checkpoints(self) -> list[StateCheckpoint]:
        """Places, the most recently used last."""
        return [entry for entry in self._held if isinstance(entry, StateCheckpoint)]

    def save(self, tokens: Sequence[int], salt: str | None, decoders: Sequence[tuple[Decoder, int]], kept: int) -> None:
        """Copy the rows of `tokens` from `decoders`, each with the number of rows it holds, the target's first.

        kept: how many of the rows stay where they are. For a sequence beyond the budget, as many rows as fit.
        """
        most = max(0, self._budget - sum(self._state_bytes)) // max(1, sum(self._row_bytes))
        counts = [min(rows, most, len(tokens)) for _, rows in decoders]
        whole = counts[0]
        if (whole - kept) * RECOMPUTE_OVER_COPY < whole or whole <= kept:
            return
        prefix = tuple(tokens[:whole])
        for saved in self._saved:
            if saved.shared(prefix, salt) == whole:  # it has all of these
                self._use(saved)
                return
        self._drop([saved for saved in self._saved if saved.shared(prefix, salt) == len(saved.tokens)])
        size = sum(count * row_bytes for count, row_bytes in zip(counts, self._row_bytes, strict=True))
        self._evict_until_fits(size)
        rows = tuple(decoder.read_rows(count) for (decoder, _), count in zip(decoders, counts, strict=True))
        self._held.append(Saved(prefix, salt, rows, tuple(counts), size))

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

    def mark(self, index: int, decoder: Decoder, tokens: Sequence[int], salt: str | None, shared: bool = False) -> None:
        """Keep the states of `decoder`, number `index`, after `tokens`. shared: see `StateCheckpoint`."""
        prefix, size = tuple(tokens), self._state_bytes[index]
        if size > self._budget:
            return
        before = [place for place in self.checkpoints if place.on_the_way(index, prefix, salt)]
        for place in before:
            if len(place.tokens) == len(prefix):
                self._use(place)
                return
        passed = [place for place in before if not place.shared]
        self._drop(passed[: len(passed) + 1 - MAX_CHECKPOINTS] if len(passed) >= MAX_CHECKPOINTS and not shared else [])
        self._evict_until_fits(size)
        self._held.append(
            StateCheckpoint(index, prefix, salt, decoder.read_recurrent_states(len(prefix)), shared, size)
        )

    def nearest(self, index: int, tokens: Sequence[int], salt: str | None) -> tuple[StateCheckpoint | None, int]:
        """The place from which decoder number `index` can continue after most of `tokens`, and after how many."""
        best, most, prefix = None, 0, tuple(tokens)
        for place in self.checkpoints:
            reach = place.reach(index, prefix, salt)
            if reach >= most and reach:
                best, most = place, reach
        if best is not None:
            self._use(best)
        return best, most

    def forget(self, tokens: Sequence[int], salt: str | None) -> None:
        """Drop the places that lie on the way to `tokens`."""
        prefix = tuple(tokens)
        self._drop([place for place in self.checkpoints if place.on_the_way(place.decoder, prefix, salt)])

    def clear(self) -> None:
        self._held.clear()

    def _evict_until_fits(self, size: int) -> None:
        while self._held and self.size + size > self._budget:
            del self._held[0]

    def _drop(self, entries: Sequence[Saved | StateCheckpoint]) -> None:
        self._held = [entry for entry in self._held if entry not in entries]

    def _use(self, entry: Saved | StateCheckpoint) -> None:
        self._held.remove(entry)
        self._held.append(entry)
