"""Splits tokens that need no logits (prefill) into passes of the contract's widths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bundle import Contract


def feed_passes(
    tokens: Sequence[int], position: int, contract: Contract, pad_from: int
) -> Iterator[tuple[int, Sequence[int], int]]:
    """Yields each pass: its width, its tokens (at most as many), and the position of the first.

    pad_from: from this many tokens on, a pass is padded to a prompt chunk. The padding's cache rows are overwritten
    later, so only the capacity can forbid it; passes are then at most as wide as a step.
    """
    widest, chunk, capacity = contract.widest_step, contract.prompt_chunk, contract.capacity
    while tokens:
        padded = len(tokens) >= pad_from and position + chunk <= capacity
        count = min(len(tokens), chunk if padded else widest)
        yield chunk if padded else count, tokens[:count], position
        tokens, position = tokens[count:], position + count
