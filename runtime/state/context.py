"""The session's sequence and how much of it each cache holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...engines.base import Decoder, Logits, nothing
from .conversations import Conversations, Saved, shared_prefix


@dataclass
class CachedDecoder:
    """A decoder and the number of cache rows that it was fed; the context says how many of them still count.

    chunk: tokens of the widest pass. checkpoint: called in front of each prompt chunk; it raises to stop there.
    """

    decoder: Decoder
    chunk: int
    rows: int = 0
    checkpoint: Callable[[], None] = nothing

    def keep(self, rows: int) -> None:
        """Count no more than `rows`, and no more than what the decoder can go on behind."""
        self.rows = self.decoder.resumable(min(self.rows, rows))

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        if position < self.rows:
            self.rows = position  # a pass that fails leaves rows that nobody can tell
        logits = self.decoder.step(tokens, position)
        self.rows = position + len(tokens)
        return logits

    def prefill(self, tokens: Sequence[int], end: int) -> None:
        """Feed `tokens[rows:end]` in chunks, or `tokens[:end]` where more is there that cannot be rolled back."""
        if self.rows > end and self.decoder.resumable(end) < end:
            self.keep(end)
        while self.rows < end:
            self.checkpoint()
            part = tokens[self.rows : min(self.rows + self.chunk, end)]
            self.decoder.feed(part, self.rows)
            self.rows += len(part)


@dataclass
class Context:
    """One sequence with the caches behind it.

    Invariant between rounds: `rows` of every decoder are the rows of `tokens[:rows]`. Rolling back lowers `rows`,
    nothing else: the next write overwrites what lies beyond. A decoder whose states cannot be rolled back as far has
    none: what it lacks is fed again.

    salt: the sequence's, see `SamplingParameters.cache_salt`. conversations: where rows go that the next sequence
    overwrites, if anywhere. restored: target rows that the last `start` got back from there.
    """

    target: CachedDecoder
    draft: CachedDecoder | None = None
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    conversations: Conversations | None = None
    restored: int = 0

    @property
    def decoders(self) -> tuple[CachedDecoder, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def behind(self) -> int:
        """Rows that the draft's cache lacks, 0 without a draft model."""
        return len(self.tokens) - self.draft.rows if self.draft is not None else 0

    def start(self, prompt: Sequence[int], salt: str | None = None) -> int:
        """Make `prompt` the sequence; returns the number of its tokens whose target rows are there.

        `restored` of these came back from `conversations`. Sequences of different salts share no rows.
        """
        common = shared_prefix(self.tokens, prompt) if salt == self.salt else 0
        saved, shared = None, 0
        if self.conversations is not None:
            saved, shared = self.conversations.longest(prompt, salt)  # first: it may have to make room
            held = [(cached.decoder, cached.rows) for cached in self.decoders]
            self.conversations.save(self.tokens, self.salt, held, common)
        self.keep(common)  # first: an interrupt between the lines must not leave rows of other tokens
        self.tokens, self.salt = list(prompt), salt
        kept = self.target.rows
        if saved is not None:
            self._restore(saved, shared)
        # The last token is fed by the first round, whose logits continue the prompt.
        self.target.keep(len(prompt) - 1)
        self.restored = max(0, self.target.rows - kept)
        return self.target.rows

    def _restore(self, saved: Saved, shared: int) -> None:
        """Put back the first `shared` rows of `saved`, those that are not there."""
        for cached, rows, count in zip(self.decoders, saved.rows, saved.counts, strict=True):
            end = min(shared, count)
            if end > cached.rows:
                cached.decoder.write_rows(rows, cached.rows, end)
                cached.rows = end

    def keep(self, rows: int) -> None:
        for cached in self.decoders:
            cached.keep(rows)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self.keep(length)

    def forget(self) -> None:
        """Start from nothing, with clean caches: a NaN in a dead row could still poison what masks it."""
        self.truncate(0)
        for cached in self.decoders:
            cached.decoder.overwrite_rows(0, 0.0)
