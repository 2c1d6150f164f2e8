"""The target's log-probability of a token, before the request's settings change the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .distribution import Row
from .truncation import largest


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms. likeliest: (token, logprob) of as many as were requested, the likeliest first. rank: of a
    prompt's token, 1 for the likeliest.
    """

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]
    rank: int | None = None


def token_logprobs(logits: Row, token: int, count: int) -> TokenLogprobs:
    """The log-softmax of the target's logits `[vocab] float32`, in float32, of `token` and of the `count` likeliest.

    Among equals the lower id comes first, as in greedy decoding.
    """
    top = logits.max()
    normaliser = top + np.log(np.exp(logits - top).sum())
    likeliest: tuple[tuple[int, float], ...] = ()
    if count:
        ids = largest(logits, min(count, len(logits)))
        order = ids[np.lexsort((ids, -logits[ids]))][:count]
        likeliest = tuple((int(place), float(logits[place] - normaliser)) for place in order)
    return TokenLogprobs(token, float(logits[token] - normaliser), likeliest)
