"""Places of a sequence from which a model can continue although its states cannot be rolled back: copies on the
host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.base import SavedStates


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
        """Whether `tokens` begin with all of its own."""
        return decoder == self.decoder and salt == self.salt and tokens[: len(self.tokens)] == self.tokens

    def reach(self, decoder: int, tokens: tuple[int, ...], salt: str | None) -> int:
        """After how many of `tokens` a pass can continue, 0 for none."""
        start = self.states.start
        if decoder != self.decoder or salt != self.salt or tokens[:start] != self.tokens[:start]:
            return 0
        return start + shared_prefix(self.tokens[start:], tokens[start:])


def shared_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The number of leading tokens that both share."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return min(len(ours), len(theirs))
