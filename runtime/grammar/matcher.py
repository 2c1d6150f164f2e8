"""The state of a text in its grammar: the protocol of the rules, so that they need no library (docs/grammars.md)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Allowed = NDArray[np.bool_]  # [vocab]


class Matcher(Protocol):
    """The state after some tokens of text. It never sees stop tokens.

    Its answers depend on the tokens alone, not on earlier calls. Raises `GrammarError` where it cannot tell.
    """

    @property
    def seconds(self) -> float:
        """Seconds that the answers of this one and of all its copies took so far."""
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text is complete, so that it may end here."""
        ...

    @property
    def done(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        ...

    def allowed(self) -> Allowed:
        """`[vocab]`: the tokens that may follow. Must not be changed."""
        ...

    def accepts(self, token: int) -> bool:
        """`allowed()[token]`, without computing the others."""
        ...

    def forced(self) -> list[int]:
        """Tokens that the grammar forces, as far as it can tell; the first is the only one allowed."""
        ...

    def advance(self, token: int) -> None:
        """Append `token`, one of those allowed, to the text."""
        ...

    def copy(self) -> Matcher:
        """A copy that is independent from here on."""
        ...
