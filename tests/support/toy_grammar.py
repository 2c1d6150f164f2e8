"""A grammar without a library, for tests of what the rules make of one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from specexport.errors import GrammarError


@lru_cache(None)
def _drawn(vocab: int, seed: int, text: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """(which tokens may follow `text`, whether it may end)."""
    rng = np.random.default_rng([seed, vocab, len(text), *text])
    count = 1 if rng.random() < 0.3 else int(rng.integers(1, vocab + 1))
    allowed = np.zeros(vocab, np.bool_)
    allowed[rng.choice(vocab, count, replace=False)] = True
    return allowed, bool(rng.random() < 0.5)


class ToyMatcher:
    """Which tokens may follow is drawn anew for every text, so that a row masked by another place's state shows.

    Some texts force one token, some may end. closed: texts of this length are done.
    """

    seconds = 0.0

    def __init__(self, vocab: int, seed: int, closed: int | None = None, text: tuple[int, ...] = ()) -> None:
        self.vocab, self.seed, self.closed, self.text = vocab, seed, closed, text

    @property
    def accepting(self) -> bool:
        return self.done or _drawn(self.vocab, self.seed, self.text)[1]

    @property
    def done(self) -> bool:
        return len(self.text) == self.closed

    def allowed(self) -> np.ndarray:
        return np.zeros(self.vocab, np.bool_) if self.done else _drawn(self.vocab, self.seed, self.text)[0]

    def accepts(self, token: int) -> bool:
        return bool(self.allowed()[token])

    def forced(self) -> list[int]:
        checkpoints = np.flatnonzero(self.allowed())
        return checkpoints.tolist() if len(checkpoints) == 1 else []

    def advance(self, token: int) -> None:
        if not self.accepts(token):
            raise GrammarError(f"{token} does not follow {self.text}")
        self.text += (token,)

    def copy(self) -> ToyMatcher:
        return type(self)(self.vocab, self.seed, self.closed, self.text)
