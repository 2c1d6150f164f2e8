"""The protocol that decides, between draft passes, whether to draft further."""

from __future__ import annotations

from typing import Protocol

from ...engines.base import Logits


class Guide(Protocol):
    """Asked while a round drafts."""

    def include(self, index: int, logits: Logits) -> bool:
        """Whether to take draft token `index`, from 0, which the last row of `logits` gives; asked before it is
        drawn.
        """
        ...

    def go_on(self, num_drafted: int) -> bool:
        """Whether to run another draft pass after `num_drafted` tokens of the model, 0 for the round's first."""
        ...

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        """How many to take of `count` tokens that were looked up after `drafted` draft tokens.

        length: of the match that they continue, in tokens.
        """
        ...
