"""llguidance behind the protocol `Matcher`: the state of a text in a compiled grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ...errors import GrammarError
from .matcher import Allowed

if TYPE_CHECKING:
    from llguidance import LLMatcher

LONGEST_SHOWN = 300


class Stopwatch:
    """Of one request: its matcher and all copies count together."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._started


class GuidedMatcher:
    """Masks are computed on copies: a failing one must not change a state that drafts merely pass through.

    If the grammar forces bytes, llguidance allows only the token with which its tokenizer writes them, while
    `validate_tokens` takes every token that fits; so `accepts` looks at the forced tokens first.
    """

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, eos_tokens: Sequence[int], watch: Stopwatch | None = None
    ) -> None:
        """vocab_size: the model's, which may be padded beyond the tokenizer's. eos_tokens: llguidance's own."""
        self._matcher, self._vocab_size, self._eos_tokens = matcher, vocab_size, eos_tokens
        self._watch = watch or Stopwatch()
        self._allowed: Allowed | None = None
        self._forced: list[int] | None = None

    @property
    def seconds(self) -> float:
        return self._watch.seconds

    @property
    def accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def done(self) -> bool:
        # Whether the library has stopped already may depend on the masks that were requested; the mask does not.
        return self.accepting and (self._matcher.is_stopped() or not self.allowed().any())

    def allowed(self) -> Allowed:
        if self._allowed is None:
            words = np.zeros(-(-self._vocab_size // 32), np.uint32)
            with self._watch:
                copy = self._matcher.deep_copy()
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
        with self._watch:
            accepted = self._matcher.validate_tokens([token]) == 1
        self._check(self._matcher)
        return accepted

    def forced(self) -> list[int]:
        if self._forced is None:
            with self._watch:
                self._forced = self._matcher.compute_ff_tokens()
            self._check(self._matcher)
        return self._forced

    def advance(self, token: int) -> None:
        self._allowed = self._forced = None
        with self._watch:
            taken = self._matcher.consume_token(token)
        if not taken:
            self._check(self._matcher)
            raise GrammarError(f"the grammar does not allow token {token} here", "grammar_failed")

    def begin(self) -> GuidedMatcher:
        """A copy for a new request, whose time is counted from here."""
        return self._copy(Stopwatch())

    def copy(self) -> GuidedMatcher:
        return self._copy(self._watch)

    def _copy(self, watch: Stopwatch) -> GuidedMatcher:
        copy = GuidedMatcher(self._matcher.deep_copy(), self._vocab_size, self._eos_tokens, watch)
        copy._allowed, copy._forced = self._allowed, self._forced
        return copy

    @staticmethod
    def _check(matcher: LLMatcher) -> None:
        """The library's errors are silent and permanent: the mask then allows nothing but the end of the text."""
        if matcher.is_error():
            told = one_line(matcher.get_error())
            raise GrammarError(f"the grammar cannot be followed here: {told}; simplify it", "grammar_failed")


def one_line(text: str) -> str:
    """The library's message without the excerpt of the grammar after it."""
    told = re.split(r"\n\s*\d+ \| ", text.replace("<non-verbose/>", ""))[0]
    return " ".join(told.split())[:LONGEST_SHOWN]
