"""llguidance as the protocol `Matcher`: the state of a text in a compiled grammar."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...errors import GrammarError
from .constraint import Allowed

if TYPE_CHECKING:
    from llguidance import LLMatcher

LONGEST_SHOWN = 300
FULL = "too many states"  # in llguidance's error for a lexer at its limit
T = TypeVar("T")


class Stopwatch:
    """Of one request: its matcher and all copies count together."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._started


class Source:
    """A compiled grammar at the start of the text. All copies of its matcher share one lexer, which keeps the states
    that each of their texts adds. Once it is full it fails for all of them, so then the grammar is compiled again.

    again: compiles it, with a lexer that is empty.
    """

    def __init__(self, matcher: LLMatcher, again: Callable[[], LLMatcher]) -> None:
        self.matcher = matcher
        self._again, self._lock = again, threading.Lock()

    def renewed(self, full: LLMatcher) -> LLMatcher:
        """The matcher in place of the one that is `full`; another copy may have noticed it first."""
        with self._lock:
            if self.matcher is full:
                self.matcher = self._again()
            return self.matcher


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
        self._source: Source | None = None
        self._begun = matcher  # the source's, of which this is a copy
        self._tokens: list[int] = []

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
            self._ask(lambda copy: copy.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes), of_copy=True)
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
        fits = self._ask(lambda matcher: matcher.validate_tokens([token])) == 1
        if not fits and self._source is not None:  # or no state was left, of which it does not tell
            with self._watch:
                tried = self._matcher.deep_copy()
                tried.consume_token(token)
            if _full(tried):
                self._renew(self._source)
                fits = self._ask(lambda matcher: matcher.validate_tokens([token])) == 1
        return fits

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether these may follow, one after the other, also where the grammar forces others with the same bytes."""
        return self._ask(lambda matcher: matcher.validate_tokens(list(tokens))) == len(tokens)

    def forced(self) -> list[int]:
        if self._forced is None:
            self._forced = self._ask(lambda matcher: matcher.compute_ff_tokens())
        return self._forced

    def advance(self, token: int) -> None:
        self._allowed = self._forced = None
        if not self._ask(lambda matcher: matcher.consume_token(token)):
            raise GrammarError(f"the grammar does not allow token {token} here", code="grammar_failed")
        self._tokens.append(token)

    def renew_by(self, again: Callable[[], LLMatcher]) -> None:
        """Let copies outlive their lexer. again: compiles the grammar once more."""
        self._source = Source(self._matcher, again)

    def begin(self) -> GuidedMatcher:
        """A copy for a new request, whose time is counted from here. Of a matcher at the start of the text."""
        if self._source is not None:
            self._begun = self._matcher = self._source.matcher
        return self._copy(Stopwatch())

    def copy(self) -> GuidedMatcher:
        return self._copy(self._watch)

    def _copy(self, watch: Stopwatch) -> GuidedMatcher:
        copy = GuidedMatcher(self._matcher.deep_copy(), self._vocab_size, self._eos_tokens, watch)
        copy._allowed, copy._forced = self._allowed, self._forced
        copy._source, copy._begun, copy._tokens = self._source, self._begun, self._tokens.copy()
        return copy

    def _ask(self, question: Callable[[LLMatcher], T], of_copy: bool = False) -> T:
        """The matcher's answer, or a new one's if its lexer is full."""
        with self._watch:
            matcher = self._matcher.deep_copy() if of_copy else self._matcher
            answer = question(matcher)
        if self._source is not None and _full(matcher):
            self._renew(self._source)
            with self._watch:
                matcher = self._matcher.deep_copy() if of_copy else self._matcher
                answer = question(matcher)
        if matcher.is_error():  # silent and permanent: the mask then allows nothing but the end of the text
            reason = one_line(matcher.get_error())
            raise GrammarError(f"the grammar cannot be followed here: {reason}; simplify it", code="grammar_failed")
        return answer

    def _renew(self, source: Source) -> None:
        """The same text with a lexer that has room."""
        with self._watch:
            self._begun = source.renewed(self._begun)
            self._matcher = self._begun.deep_copy()
            self._matcher.consume_tokens(self._tokens)


def _full(matcher: LLMatcher) -> bool:
    return matcher.is_error() and FULL in matcher.get_error()


def one_line(text: str) -> str:
    """The library's message without the excerpt of the grammar after it."""
    message = re.split(r"\n\s*\d+ \| ", text.replace("<non-verbose/>", ""))[0]
    return " ".join(message.split())[:LONGEST_SHOWN]
