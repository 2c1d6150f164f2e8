"""The texts of calibration as the model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import ParameterError

# Fewer say too little of which channels are large; more change nothing that can be measured and take minutes on large
# models.
FEWEST_TOKENS = 512
MOST_TOKENS = 8192


def calibration_tokens(tokenizer: Any, texts: Sequence[str], length: int = 256) -> list[Tensor]:
    """Batches [1, T] int64 with T <= length, at most MOST_TOKENS in all, taken evenly from all texts.

    tokenizer: a Hugging Face one. Every piece begins as a prompt does, with the special tokens that the tokenizer puts
    in front: channels that only a first token makes large are seen. Raises `ParameterError` for fewer than
    FEWEST_TOKENS.
    """
    pieces: list[list[int]] = []
    for text in texts:
        tokens = list(tokenizer(text, verbose=False)["input_ids"])
        first = tokens[:1] if tokens and tokens[0] == tokenizer.bos_token_id else []
        rest, room = tokens[len(first) :], length - len(first)
        pieces += [first + rest[start : start + room] for start in range(0, len(rest), room)]
    found = sum(map(len, pieces))
    if found < FEWEST_TOKENS:
        raise ParameterError(
            f"the calibration prompts have {found} tokens, expected {FEWEST_TOKENS} at least; "
            "give more or longer ones, or leave --calibration-prompts out for the shipped set"
        )
    followed = [piece for piece in pieces if len(piece) > 1]  # one token says nothing of what follows
    return [torch.tensor([piece]) for piece in _evenly(followed or pieces, MOST_TOKENS)]


def _evenly(pieces: list[list[int]], most: int) -> list[list[int]]:
    """Every nth piece, with the smallest n that keeps the tokens within `most`; the first piece in any case."""
    for step in range(1, len(pieces) + 1):
        taken = pieces[::step]
        if sum(map(len, taken)) <= most:
            return taken
    return pieces[:1]
