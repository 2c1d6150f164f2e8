"""Where a text stands in its grammar: what the rules ask, so that they need no library (docs/grammars.md)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Allowed = NDArray[np.bool_]  # [vocab]


class Matcher(Protocol):
    """The state behind some tokens of text. Stop tokens are none of its business: it never sees one.

    Its answers depend on the tokens alone, not on what was asked before. Raises `GrammarError` where it cannot tell.
    """

    @property
    def seconds(self) -> float:
        """What the answers of this one and of all its copies took so far."""
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
        """`[vocab]`: the tokens that may follow. Not to be changed."""
        ...

    def accepts(self, token: int) -> bool:
        """`allowed()[token]`, without the others."""
        ...

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, as far as it can tell; the first is all that is allowed."""
        ...

    def advance(self, token: int) -> None:
        """`token`, one of those allowed, is now part of the text."""
        ...

    def copy(self) -> Matcher:
        """Goes its own way from here."""
        ...
