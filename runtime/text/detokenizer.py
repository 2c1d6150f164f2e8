"""Tokens to text, piece by piece: complete characters only, and nothing that may become a stop string."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # a tokenizer's text for half a character
# A UTF-8 character has at most four bytes, so an unfinished one has at most this many tokens.
UNFINISHED = 3
# Most tokens that are held back, so that little has to be decoded for each new one.
HELD = 16


class Detokenizer:
    """The text of the tokens after `prompt`; a character is emitted once its last byte is there.

    Tokens are decoded together with those before them, since tokenizers join words, and bytes, by their neighbours. A
    character that the prompt leaves unfinished belongs to the text, unless this is `whole`, as a grammar's is. shown:
    special tokens that have a text, with their names; the others have none.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], shown: Collection[int] = (), whole: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = {token: tokenizer.id_to_token(token) or "" for token in shown}
        size = 8
        # The window must not begin in the middle of a character.
        while size < len(prompt) and REPLACEMENT in tokenizer.decode(list(prompt[-size:])):
            size *= 2
        self._tokens = list(prompt[-size:])
        self._prompt = len(self._tokens)
        self._start = self._emitted = 0
        boundary = self._boundary()
        if whole and boundary is not None:
            del self._tokens[boundary:]
            self._prompt = boundary
        self._emitted = self._prompt if boundary is None else boundary

    def add(self, token: int) -> str:
        if token in self._shown:
            return self._show(token)
        self._tokens.append(token)
        end = len(self._tokens)
        text = self._text(end)
        if not text.endswith(REPLACEMENT):
            return self._emit(end, text)
        boundary = self._boundary()
        if boundary is not None:
            return self._emit(boundary, self._text(boundary))
        # Bytes that belong to no character, or replacement characters written by the model.
        if end - self._emitted <= HELD:
            return ""
        return self._emit(end - UNFINISHED, self._text(end - UNFINISHED))

    def flush(self) -> str:
        """The rest when no more tokens come: replacement characters, from the model or for a character that was cut
        off.
        """
        end = len(self._tokens)
        return self._emit(end, self._text(end)) if end > self._prompt else ""

    def _show(self, token: int) -> str:
        before = self.flush()
        self._emitted = len(self._tokens)
        return before + self._shown[token]

    def _boundary(self) -> int | None:
        """The last position at which no character is unfinished; None if the last tokens have none."""
        end = len(self._tokens)
        for place in range(end, max(self._emitted, end - UNFINISHED) - 1, -1):
            if place == self._emitted or not self._text(place).endswith(REPLACEMENT):
                return place
        return None

    def _emit(self, end: int, now: str) -> str:
        before = self._text(self._emitted)
        if now == before and not self._tokenizer.decode(2 * self._tokens[self._emitted : end]):
            # Special tokens, which every later one would decode again. A space in front of a text has none at first.
            del self._tokens[self._emitted : end]
        if not now.startswith(before):  # SentencePiece's: with bytes of no character, none of a run's is one
            now = before + self._tokenizer.decode(self._tokens[self._emitted : end])
        if len(now) <= len(before):
            return ""
        self._start, self._emitted = self._emitted, end
        return now[len(before) :]

    def _text(self, end: int) -> str:
        return self._tokenizer.decode(self._tokens[self._start : end])


class StopStrings:
    """Holds back text that may be the start of a stop string; finds the earliest one. There may be hundreds: a text is
    looked up among them in order, once for each length that they have.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = frozenset(stops)
        self._ordered = sorted(self._stops)
        self._sizes = sorted({*map(len, self._stops)}, reverse=True)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """The text that can be emitted now; once a stop string is `found` there is no more after it."""
        seen = len(self._held)
        self._held += text
        places = [
            end - size
            for end in range(seen + 1, len(self._held) + 1)
            for size in self._sizes
            if size <= end and self._held[end - size : end] in self._stops
        ]
        if places:
            self.found = True
            return self._release(min(places))
        return self._release(len(self._held) - self._overlap())

    def flush(self) -> str:
        """The text that was held back, when no more comes."""
        return self._release(len(self._held))

    def _overlap(self) -> int:
        """Length of the longest end of the held text with which a stop string may begin."""
        most = min(self._sizes[0] - 1, len(self._held)) if self._sizes else 0
        return next((size for size in range(most, 0, -1) if self._begins(self._held[-size:])), 0)

    def _begins(self, text: str) -> bool:
        place = bisect_left(self._ordered, text)
        return place < len(self._ordered) and self._ordered[place].startswith(text)

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], self._held[length:]
        return released
