"""A whole answer: all chunks of a stream as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .loop.chunks import Chunk, FinishReason
from .sampling.logprobs import TokenLogprobs
from .state.statistics import Statistics


@dataclass(frozen=True)
class Generation:
    """finish_reason `stop`: a stop token or stop string came, or the grammar is complete; `length`: max_new_tokens or
    the capacity was reached; `cancelled`: by `Session.cancel`. logprobs: one for each of the tokens, if the request
    asked for them.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics
    logprobs: tuple[TokenLogprobs, ...] = ()

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Generation:
        """All chunks of a stream as one."""
        last = chunks[-1]
        assert last.finish_reason is not None
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        logprobs = tuple(one for chunk in chunks for one in chunk.logprobs)
        return cls("".join(chunk.text for chunk in chunks), tokens, last.finish_reason, last.statistics, logprobs)
