"""The session's sequence and how much of it each cache holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...engines.base import Decoder, Logits, nothing


@dataclass
class CachedDecoder:
    """A decoder and the number of cache rows that it was fed; the context says how many of them still count.

    chunk: tokens of the widest pass. checkpoint: called in front of each prompt chunk; it raises to stop there.
    """

    decoder: Decoder
    chunk: int
    rows: int = 0
    checkpoint: Callable[[], None] = nothing

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        if position < self.rows:
            self.rows = position  # a pass that fails leaves rows that nobody can tell
        logits = self.decoder.step(tokens, position)
        self.rows = position + len(tokens)
        return logits

    def prefill(self, tokens: Sequence[int], end: int) -> None:
        """Feed `tokens[rows:end]` in chunks."""
        while self.rows < end:
            self.checkpoint()
            part = tokens[self.rows : min(self.rows + self.chunk, end)]
            self.decoder.feed(part, self.rows)
            self.rows += len(part)


@dataclass
class Context:
    """One sequence with the caches behind it.

    Invariant between rounds: `rows` of every decoder are the rows of `tokens[:rows]`. Rolling back lowers `rows`,
    nothing else: the next write overwrites what lies beyond.
    """

    target: CachedDecoder
    draft: CachedDecoder | None = None
    tokens: list[int] = field(default_factory=list)

    @property
    def decoders(self) -> tuple[CachedDecoder, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def behind(self) -> int:
        """Rows that the draft's cache lacks, 0 without a draft model."""
        return len(self.tokens) - self.draft.rows if self.draft is not None else 0

    def start(self, prompt: Sequence[int]) -> int:
        """Make `prompt` the sequence; returns the number of its tokens whose target rows are kept."""
        common = 0
        for ours, theirs in zip(self.tokens, prompt, strict=False):
            if ours != theirs:
                break
            common += 1
        self.keep(common)  # first: an interrupt between the two lines must not leave rows of other tokens
        self.tokens = list(prompt)
        # The last token is fed by the first round, whose logits continue the prompt.
        self.target.rows = min(self.target.rows, len(prompt) - 1)
        return self.target.rows

    def keep(self, rows: int) -> None:
        for cached in self.decoders:
            cached.rows = min(cached.rows, rows)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self.keep(length)

    def forget(self) -> None:
        """Start from nothing, with clean caches: a NaN in a dead row could still poison what masks it."""
        self.truncate(0)
        for cached in self.decoders:
            cached.decoder.overwrite_rows(0, 0.0)
