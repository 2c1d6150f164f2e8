"""Tokens to text, piece by piece: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from ...errors import ParameterError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer decodes half a character to


class Detokenizer:
    """Text of the tokens behind `prompt`; a character is emitted once its last byte is there.

    Tokens are decoded together with those before them, since tokenizers join words, and bytes, by their neighbours.
    A character that the prompt leaves unfinished belongs to what follows.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        size = 8
        # The window must not begin in the middle of a character.
        while size < len(prompt) and REPLACEMENT in tokenizer.decode(list(prompt[-size:])):
            size *= 2
        self._tokens = list(prompt[-size:])
        self._start, self._emitted = 0, len(self._tokens)
        while self._emitted and self._text(self._emitted).endswith(REPLACEMENT):
            self._emitted -= 1

    def add(self, token: int) -> str:
        self._tokens.append(token)
        before, now = self._text(self._emitted), self._text(len(self._tokens))
        if len(now) <= len(before) or now.endswith(REPLACEMENT):
            return ""
        self._start, self._emitted = self._emitted, len(self._tokens)
        return now[len(before) :]

    def _text(self, end: int) -> str:
        return self._tokenizer.decode(self._tokens[self._start : end])


class StopStrings:
    """Holds back text that may be the start of a stop string; finds the earliest one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not isinstance(stops, Iterable) or not all(isinstance(stop, str) for stop in stops):
            raise ParameterError(f"stop is {stops!r}; it must be a text or a list of texts")
        if not all(stops):
            raise ParameterError("a stop string is empty; give strings of at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """The text that can be emitted now; once a stop string is `found` this is all there is."""
        self._held += text
        places = [place for place in map(self._held.find, self._stops) if place >= 0]
        if places:
            self.found = True
            return self._release(min(places))
        return self._release(len(self._held) - max(map(self._overlap, self._stops), default=0))

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        return self._release(len(self._held))

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        sizes = range(min(len(stop) - 1, len(self._held)), 0, -1)
        return next((size for size in sizes if self._held.endswith(stop[:size])), 0)

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], self._held[length:]
        return released
