"""Calibration texts as batches of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import ParameterError

# Fewer tokens do not show which channels are large. More change nothing measurable and take minutes on large models.
FEWEST_TOKENS = 512
MOST_TOKENS = 8192
BATCH_TOKENS = 256


def calibration_tokens(tokenizer: Any, texts: Sequence[str], length: int = BATCH_TOKENS) -> list[Tensor]:
    """Batches [1, T] int64, T <= length, of at most MOST_TOKENS in all, taken evenly from the texts.

    tokenizer: Hugging Face's. Every batch begins with the tokenizer's leading special token, as prompts do, so that
    channels that only the first token makes large are seen. Raises `ParameterError` for fewer than FEWEST_TOKENS.
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
            f"the calibration prompts have {found} tokens, expected at least {FEWEST_TOKENS}; "
            "give more or longer ones, or leave out --calibration-prompts to use the built-in set",
            "calibration_prompts",
        )
    followed = [piece for piece in pieces if len(piece) > 1]  # a single token has no next token to predict
    return [torch.tensor([piece]) for piece in _evenly(followed or pieces, MOST_TOKENS)]


def _evenly(pieces: list[list[int]], most: int) -> list[list[int]]:
    """Every nth piece, with the smallest n that keeps the tokens within `most`; at least the first piece."""
    for step in range(1, len(pieces) + 1):
        taken = pieces[::step]
        if sum(map(len, taken)) <= most:
            return taken
    return pieces[:1]
