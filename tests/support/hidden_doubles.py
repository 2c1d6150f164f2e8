"""Doubles of a target that shows hidden states and a draft that reads them: each row betrays what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from specexport.engines.base import Logits
from specexport.runtime.state.context import Context
from specexport.runtime.state.hidden_rows import HiddenDecoder

from .doubles import CONTRACT, FakeDecoder

WIDTH = 3


def hidden_after(tokens: Sequence[float]) -> NDArray[np.float32]:
    """The hidden states `[3]` of the last of `tokens`, a function of all of them."""
    digest = blake2b(np.asarray(tokens, np.float64).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).normal(size=WIDTH).astype(np.float32)


class TappedDecoder(FakeDecoder):
    """A target. `taps` is what engines call so: hidden states of the last pass, until the next one."""

    def __init__(self, seed: int = 0, vocab_size: int = 9):
        super().__init__(CONTRACT, vocab_size, seed)
        self._hidden = np.zeros((CONTRACT.capacity, WIDTH), np.float32)
        self._count = 0

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        logits = super().step(tokens, position)
        self._hidden[:] = np.nan
        for index, row in enumerate(range(position, position + len(tokens))):
            self._hidden[index] = hidden_after(self.rows[: row + 1])
        self._count = len(tokens)
        return logits

    def taps(self) -> NDArray[np.float32]:
        return self._hidden[: self._count]


class ReadingDecoder(FakeDecoder):
    """A draft. A row is of the hidden states that the pass was given and the token after them."""

    def __init__(self, seed: int = 0, vocab_size: int = 9):
        super().__init__(CONTRACT, vocab_size, seed, noise=0.6)
        self.read_states = np.full((CONTRACT.capacity, WIDTH), np.nan, np.float32)
        self._next = np.zeros((0, WIDTH), np.float32)
        self._back = np.zeros(WIDTH, np.float32)
        self._end = 0
        self._reads_back = False

    def read(self, hidden: NDArray[np.float32]) -> None:
        self._next = hidden.copy()

    def read_back(self) -> None:
        self._next = self._back[None].copy()
        self._reads_back = True

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        assert len(self._next) == len(tokens), "a pass of so many tokens was announced to the reader"
        assert position == self._end or not self._reads_back, "a drafted row follows the one that it reads back"
        self._end, self._reads_back = position + len(tokens), False
        self.read_states[position : position + len(tokens)] = self._next
        self._next = np.zeros((0, WIDTH), np.float32)
        logits = super().step(tokens, position)
        self._back = logits[-1, :WIDTH].copy()
        return logits

    def seen(self, row: int) -> np.ndarray:
        return np.concatenate([super().seen(row), self.read_states[: row + 1].flatten()])

    def overwrite_rows(self, start: int, value: float) -> None:
        super().overwrite_rows(start, value)
        self.read_states[start:] = np.nan

    def read_rows(self, end: int) -> list[np.ndarray]:
        return [np.concatenate([self.rows[None, :end, None], self.read_states[None, :end]], -1)]

    def write_rows(self, saved: Sequence[np.ndarray], start: int, end: int) -> None:
        self.rows[start:end] = saved[0][0, start:end, 0]
        self.read_states[start:end] = saved[0][0, start:end, 1:]


def hidden_pair(
    seed: int = 0, vocab_size: int = 9, chunk: int = CONTRACT.prompt_chunk
) -> tuple[TappedDecoder, HiddenDecoder]:
    target, draft = TappedDecoder(seed, vocab_size), ReadingDecoder(seed, vocab_size)
    return target, HiddenDecoder(draft, chunk, widest=CONTRACT.widest_step, reader=draft, width=WIDTH)


def check_rows(context: Context) -> None:
    """Every row that counts, of every draft that reads, is what a fresh pass over the sequence would have written."""
    tokens = context.tokens
    for cached in context.every_decoder:
        if isinstance(cached, HiddenDecoder):
            assert cached.reach < max(1, len(tokens)), "a row is of the token after it"
            draft = cached.decoder
            assert isinstance(draft, ReadingDecoder)
            for row in range(cached.rows):
                assert draft.rows[row] == tokens[row + 1], row
                np.testing.assert_array_equal(draft.read_states[row], hidden_after(tokens[: row + 1]))
