"""A decoder, and how many rows its cache has; and what ends a request between its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...engines.base import Decoder, Logits, nothing


class Cancelled(Exception):  # noqa: N818 (no failure: the request ends with the finish reason `cancelled`)
    pass


class Cancellation:
    """Cancellation of one request: requested by any thread, obeyed between prompt chunks and between rounds.

    checks: how often it was checked; if that number stands still, a pass hangs.
    """

    def __init__(self) -> None:
        self.requested = False
        self.checks = 0

    def check(self) -> None:
        """Raises `Cancelled`."""
        self.checks += 1
        if self.requested:
            raise Cancelled


@dataclass
class CachedDecoder:
    """A decoder and the number of cache rows that it was fed; the context says how many of them still count.

    chunk: tokens of the widest pass. widest: of the widest pass of `read`. held_back: how
    many of a prompt's tokens are left to the first round. check_cancelled: called before each prompt chunk; it raises
    to stop there. checkpoints: row counts at which prefill stops to call `at_place`. ahead: how many tokens after its
    own a row depends on. on_feed: called with position and number of the tokens of each prompt chunk, after it. slots:
    tokens of a block, which a draft gives in one pass and ends with; 0 for one a pass, and no end.
    """

    decoder: Decoder
    chunk: int
    rows: int = 0
    held_back: int = 1
    widest: int = 2
    check_cancelled: Callable[[], None] = nothing
    checkpoints: Sequence[int] = ()
    at_place: Callable[[], None] = nothing
    ahead: int = 0
    on_feed: Callable[[int, int], None] | None = None
    slots: int = 0

    def last(self, prompt: Sequence[int]) -> int:
        """After how many of its tokens the first round continues."""
        return max(0, len(prompt) - self.held_back)

    def keep(self, rows: int) -> None:
        """Count no more than `rows`, and no more than the decoder can continue after."""
        self.rows = self.decoder.resumable(max(0, min(self.rows, rows)))

    def resume(self, rows: int) -> None:
        """Count `rows`, which were written into the cache from elsewhere."""
        self.rows = rows

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        if position < self.rows:
            self.rows = position  # a pass that fails leaves unknown rows
        logits = self.decoder.step(tokens, position)
        self.rows = position + len(tokens)
        return logits

    def prefill(self, tokens: Sequence[int], end: int) -> None:
        """Feed `tokens[rows:end]` in chunks, or `tokens[:end]` if the cache holds more and cannot be rolled back."""
        for part in self._parts(tokens, end, self.chunk):
            self.decoder.feed(part, self.rows)

    def read(self, tokens: Sequence[int], end: int) -> Iterator[Logits]:
        """Like `prefill`, in passes that give the logits of each of their rows."""
        for part in self._parts(tokens, end, self.widest):
            yield self.decoder.step(part, self.rows)

    def _parts(self, tokens: Sequence[int], end: int, widest: int) -> Iterator[Sequence[int]]:
        """The tokens of each pass, which is to be run before the next is asked for."""
        if self.rows > end and self.decoder.resumable(end) < end:
            self.keep(end)
        while self.rows < end:
            self.check_cancelled()
            stops = [place for place in (*self.checkpoints, end) if place > self.rows]
            part = tokens[self.rows : min(self.rows + widest, *stops)]
            yield part
            if self.on_feed is not None:
                self.on_feed(self.rows, len(part))
            self.rows += len(part)
            if self.rows in self.checkpoints:
                self.at_place()
