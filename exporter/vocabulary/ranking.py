"""The order in which tokens are kept: those that every draft needs, then by frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.shared_vocabulary import Tokens

# Of held-out answers, what `auto` keeps. Acceptance is at most the kept part of the target's probability, so it may
# lose one point; published: 4 k, 8 k and 16 k of 128 k tokens cover 94, 97 and 99 % (arXiv 2605.10453).
COVERAGE = 0.99


def required_tokens(target: Checkpoint, tokens: Tokens, size: int) -> set[int]:
    """Stop tokens, single bytes and digits, of the `size` that the draft has logits for.

    A text that leaves the kept tokens goes on by bytes; an end or a number is never out of a draft's reach.
    """
    alone = {token for token, value in tokens.text.items() if len(value) == 1 or value.strip().isdigit()}
    return {token for token in (*target.stop_token_ids, *alone) if token < size}


def ranked(required: set[int], counts: Sequence[Counter[int]], size: int) -> list[int]:
    """All `size` ids: the required ones, then by how often they come in the first of the counts, then in the next.

    Tokens in none of the counts are ordered by id: tokenizers mostly number their tokens by how early they were merged.
    """

    def place(token: int) -> tuple[int, ...]:
        return (token not in required, *(-count[token] for count in counts), token)

    return sorted(range(size), key=place)


def coverage(kept: Iterable[int], tokens: Sequence[int]) -> float:
    """The fraction of `tokens` that is among `kept`."""
    known = set(kept)
    return sum(token in known for token in tokens) / max(len(tokens), 1)


def smallest(order: Sequence[int], tokens: Sequence[int], least: int) -> int:
    """How many of `order` must be kept, `least` or more, so that they are `COVERAGE` of `tokens`."""
    place = {token: index for index, token in enumerate(order)}
    places = sorted(place.get(token, len(order)) for token in tokens)
    needed = places[min(len(places) - 1, -(-int(COVERAGE * 1000) * len(places) // 1000) - 1)] + 1 if places else least
    return max(least, min(needed, len(order)))
