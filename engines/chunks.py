"""How tokens whose logits nobody asks for become passes of the widths that a contract has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bundle import Contract


def feed_passes(
    tokens: Sequence[int], position: int, contract: Contract, pad_from: int
) -> Iterator[tuple[int, Sequence[int], int]]:
    """Each pass's width, its tokens (up to as many), and the position of the first.

    pad_from: at least so many tokens are padded to a prompt chunk. The rows behind them are dead and written over, so
    only the capacity forbids it; then passes are as wide as a step at most.
    """
    widest, chunk, capacity = contract.widest_step, contract.prompt_chunk, contract.capacity
    while tokens:
        padded = len(tokens) >= pad_from and position + chunk <= capacity
        count = min(len(tokens), chunk if padded else widest)
        yield chunk if padded else count, tokens[:count], position
        tokens, position = tokens[count:], position + count
