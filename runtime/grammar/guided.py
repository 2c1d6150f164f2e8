"""llguidance behind `Matcher`: where a text stands in a compiled grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import GrammarError
from .matcher import Allowed

if TYPE_CHECKING:
    from llguidance import LLMatcher

LONGEST_SHOWN = 300


class GuidedMatcher:
    """Masks are computed on copies: one that fails must not change a state that drafts merely passed through.

    Where the grammar forces bytes, llguidance allows the one token that its tokenizer writes them with, while
    `validate_tokens` takes every token that fits; so `accepts` looks at the forced tokens first.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_tokens: Sequence[int]) -> None:
        """vocab_size: the model's, which may be padded beyond the tokenizer's. eos_tokens: llguidance's own."""
        self._matcher, self._vocab_size, self._eos_tokens = matcher, vocab_size, eos_tokens
        self._allowed: Allowed | None = None
        self._forced: list[int] | None = None

    @property
    def accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def done(self) -> bool:
        # Whether the library has stopped already may depend on the masks that were asked for, the mask does not.
        return self.accepting and (self._matcher.is_stopped() or not self.allowed().any())

    def allowed(self) -> Allowed:
        if self._allowed is None:
            copy = self._matcher.deep_copy()
            words = np.zeros(-(-self._vocab_size // 32), np.uint32)
            copy.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            self._check(copy)
            bits = np.unpackbits(words.view(np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
            bits[self._eos_tokens] = False
            self._allowed = bits
        return self._allowed

    def accepts(self, token: int) -> bool:
        if self._allowed is not None:
            return bool(self._allowed[token])
        forced = self.forced()
        if forced:
            return token == forced[0]
        if token in self._eos_tokens:
            return False
        accepted = self._matcher.validate_tokens([token]) == 1
        self._check(self._matcher)
        return accepted

    def forced(self) -> list[int]:
        if self._forced is None:
            self._forced = self._matcher.compute_ff_tokens()
            self._check(self._matcher)
        return self._forced

    def advance(self, token: int) -> None:
        self._allowed = self._forced = None
        if not self._matcher.consume_token(token):
            self._check(self._matcher)
            raise GrammarError(f"the grammar does not allow token {token} here")

    def copy(self) -> GuidedMatcher:
        copy = GuidedMatcher(self._matcher.deep_copy(), self._vocab_size, self._eos_tokens)
        copy._allowed, copy._forced = self._allowed, self._forced
        return copy

    @staticmethod
    def _check(matcher: LLMatcher) -> None:
        """The library's errors are silent, and stay: the mask then has nothing but the end of the text."""
        if matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed here: {one_line(matcher.get_error())}; simplify it")


def one_line(text: str) -> str:
    """The library's message without the excerpt of the grammar behind it."""
    told = re.split(r"\n\s*\d+ \| ", text.replace("<non-verbose/>", ""))[0]
    return " ".join(told.split())[:LONGEST_SHOWN]
