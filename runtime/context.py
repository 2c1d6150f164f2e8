"""The session's sequence and how much of it each cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engines.base import Decoder, Logits


@dataclass
class CachedDecoder:
    """A decoder and the number of cache rows that hold the context's tokens; rows beyond are dead."""

    decoder: Decoder
    rows: int = 0

    def prefill(self, tokens: Sequence[int], end: int, chunk: int) -> None:
        """Feed `tokens[rows:end]` in chunks."""
        while self.rows < end:
            next_rows = min(self.rows + chunk, end)
            self.decoder.step(tokens[self.rows : next_rows], self.rows)
            self.rows = next_rows


class NarrowDecoder:
    """A draft that lacks the target's last ids (vocabularies are padded to different sizes) reads id 0 for them.

    A wrong guess at most: what the draft was fed never decides what the target emits.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.vocab_size = decoder.vocab_size
        self.overwrite_rows = decoder.overwrite_rows
        self._step = decoder.step

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        return self._step([token if token < self.vocab_size else 0 for token in tokens], position)


@dataclass
class Context:
    """One sequence with the two caches behind it.

    Invariant: `rows` of either decoder are the rows of `tokens[:rows]`. Rolling back lowers `rows`, nothing else:
    the next write overwrites what lies beyond.
    """

    target: CachedDecoder
    draft: CachedDecoder
    tokens: list[int] = field(default_factory=list)

    def start(self, prompt: Sequence[int]) -> int:
        """Make `prompt` the sequence; returns the number of its tokens whose target rows are kept."""
        common = 0
        for ours, theirs in zip(self.tokens, prompt, strict=False):
            if ours != theirs:
                break
            common += 1
        self.tokens = list(prompt)
        self.keep(common)
        # The last token is fed by the first round, whose logits continue the prompt.
        self.target.rows = min(self.target.rows, len(prompt) - 1)
        return self.target.rows

    def keep(self, rows: int) -> None:
        for cached in (self.target, self.draft):
            cached.rows = min(cached.rows, rows)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self.keep(length)
