"""Tokens to text, piece by piece: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer decodes half a character to
# A character of UTF-8 has four bytes at most, so this many tokens can be all there is of an unfinished one.
UNFINISHED = 3
# Tokens that are held back at most; what is decoded for each new one stays small.
HELD = 16


class Detokenizer:
    """Text of the tokens behind `prompt`; a character is emitted once its last byte is there.

    Tokens are decoded together with those before them, since tokenizers join words, and bytes, by their neighbours.
    A character that the prompt leaves unfinished belongs to what follows. shown: special tokens that have a text, their
    name; the others have none.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], shown: Collection[int] = ()) -> None:
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
        # Bytes that belong to no character, or replacement characters that the model wrote.
        if end - self._emitted <= HELD:
            return ""
        return self._emit(end - UNFINISHED, self._text(end - UNFINISHED))

    def flush(self) -> str:
        """What is left when no more tokens come: replacement characters, the model's own or of a character cut off."""
        end = len(self._tokens)
        return self._emit(end, self._text(end)) if end > self._prompt else ""

    def _show(self, token: int) -> str:
        before = self.flush()
        self._tokens.append(token)  # decoded to nothing, it still parts what is around it
        self._emitted = len(self._tokens)
        return before + self._shown[token]

    def _boundary(self) -> int | None:
        """The last place that no character may still go on behind; None where the last tokens have none."""
        end = len(self._tokens)
        for place in range(end, max(self._emitted, end - UNFINISHED) - 1, -1):
            if place == self._emitted or not self._text(place).endswith(REPLACEMENT):
                return place
        return None

    def _emit(self, end: int, now: str) -> str:
        before = self._text(self._emitted)
        if len(now) <= len(before):
            return ""
        self._start, self._emitted = self._emitted, end
        return now[len(before) :]

    def _text(self, end: int) -> str:
        return self._tokenizer.decode(self._tokens[self._start : end])


class StopStrings:
    """Holds back text that may be the start of a stop string; finds the earliest one."""

    def __init__(self, stops: Sequence[str]) -> None:
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
