"""A prompt's own log-probabilities: of each of its tokens but the first, by the target's row before it.

Passes as wide as a verification give the logits of all their rows, a prompt chunk only its last; so a prompt is scored
in the former, and of each row only what was asked for is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..sampling.logprobs import TokenLogprobs, token_logprobs
from ..sampling.rules import NonFiniteLogitsError
from ..state.context import Context
from ..state.prompt_cache import shared_prefix


@dataclass
class Scores:
    """Those of the last prompt that was scored: what the next one shares with it is not read again, as far as its rows
    are still in the cache. Other cached rows have no logits, and are read again.
    """

    tokens: list[int] = field(default_factory=list)
    asked: tuple[str | None, int] = (None, 0)  # salt, and number of the likeliest
    entries: list[TokenLogprobs] = field(default_factory=list)

    def resume(self, context: Context, likeliest: int) -> int:
        """Begin to score the context's sequence; returns how many of its rows need not be read."""
        same = self.asked == (context.salt, likeliest)
        known = shared_prefix(self.tokens, context.tokens) if same else 0
        context.target.keep(max(0, known - 1))  # the row of the last known token scores an unknown one
        rows = context.target.rows
        del self.entries[rows:]
        self.tokens, self.asked = self.tokens[: rows + 1], (context.salt, likeliest)
        return rows

    def complete(self, context: Context) -> tuple[TokenLogprobs, ...]:
        """Of all tokens but the first. Raises `NonFiniteLogitsError`."""
        tokens, (_, likeliest) = context.tokens, self.asked
        for logits in context.target.read(tokens, len(tokens) - 1):
            for row in logits:
                place = len(self.entries) + 1
                top = float(row.max())  # NaN, where there is one
                if not math.isfinite(top):
                    raise NonFiniteLogitsError("target", place - len(tokens), top)
                rank = 1 + int((row > row[tokens[place]]).sum())
                self.entries.append(replace(token_logprobs(row, tokens[place], likeliest), rank=rank))
        self.tokens = list(tokens)
        return tuple(self.entries)
