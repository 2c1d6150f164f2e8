"""How quantization changes a model's output distributions, on calibration texts that are held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...bundle import Fidelity
from ...errors import ParameterError
from .fake_quant import fake_quantized
from .recipe import Recipe
from .texts import require_tokens

# More tokens change nothing measurable and take minutes on large models.
MAX_CALIBRATION_TOKENS = 8192
BATCH_TOKENS = 256


def calibration_tokens(
    tokenizer: Any, texts: Sequence[str], length: int = BATCH_TOKENS, vocab_size: int | None = None
) -> list[Tensor]:
    """Batches [1, T] int64, T <= length, of at most MAX_CALIBRATION_TOKENS in all, taken evenly from the texts.

    tokenizer: Hugging Face's. Every batch begins with the tokenizer's leading special token, as prompts do, so that
    channels that only the first token makes large are seen. Raises `ParameterError` for fewer than `MIN_TOKENS`, and
    for tokens from `vocab_size` on.
    """
    pieces: list[list[int]] = []
    for text in texts:
        tokens = list(tokenizer(text, verbose=False)["input_ids"])
        first = tokens[:1] if tokens and tokens[0] == tokenizer.bos_token_id else []
        rest, length_left = tokens[len(first) :], length - len(first)
        pieces += [first + rest[start : start + length_left] for start in range(0, len(rest), length_left)]
    count = sum(map(len, pieces))
    if vocab_size is not None and pieces and max(map(max, pieces)) >= vocab_size:
        raise ParameterError(
            f"the calibration prompts have token {max(map(max, pieces))}, and the model has {vocab_size} embeddings; "
            "leave out the text that makes it",
            "calibration_prompts",
        )
    require_tokens(count)
    followed = [piece for piece in pieces if len(piece) > 1]  # a single token has no next token to predict
    return evenly([torch.tensor([piece]) for piece in followed or pieces], MAX_CALIBRATION_TOKENS)


def evenly(batches: Sequence[Tensor], most: int) -> list[Tensor]:
    """Every nth batch [1, T], with the smallest n that keeps the tokens within `most`; at least the first batch."""
    for step in range(1, len(batches) + 1):
        chosen = batches[::step]
        if sum(batch.shape[-1] for batch in chosen) <= most:
            return list(chosen)
    return list(batches[:1])


# One batch in this many is held out of calibration.
EVERY = 4
MAX_HELD_OUT_TOKENS = 1024


def split(batches: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(batches to calibrate on, at most MAX_HELD_OUT_TOKENS held out). Of two or three, the last is held out."""
    held = list(batches[EVERY - 1 :: EVERY]) or list(batches[-1:])
    used = [batch for batch in batches if not any(batch is other for other in held)]
    kept: list[Tensor] = []
    total = 0
    for batch in held:
        if kept and total + batch.shape[-1] > MAX_HELD_OUT_TOKENS:
            break
        kept.append(batch)
        total += batch.shape[-1]
    return used or list(batches), kept


def measure_fidelity(
    model: nn.Module, recipe: Recipe, batches: Sequence[Tensor], own_texts: bool, kept: Tensor | None = None
) -> Fidelity:
    """Compare `model` under `recipe` with itself unquantized.

    batches: each [1, T] int64, T at least 2. own_texts: whether they are the user's, not the built-in set. kept: [m],
    the tokens whose logits the model gives, if not all; perplexities are then over these.
    """
    exact = [_log_probs(model, batch) for batch in batches]
    surprise = exact_surprise = divergence = 0.0
    agreed = tokens = proposed = 0
    with fake_quantized(model, recipe):
        for batch, theirs in zip(batches, exact, strict=True):
            ours = _log_probs(model, batch)
            following = batch[0, 1:]
            rows, places = torch.arange(len(following)), following
            if kept is not None:  # those that have logits, and in which columns
                rows, places = (following[:, None] == kept).nonzero().T
            surprise -= float(ours[rows, places].double().sum())
            exact_surprise -= float(theirs[rows, places].double().sum())
            proposed += len(rows)
            divergence += float((theirs.exp() * (theirs - ours)).sum(-1).double().mean()) * following.shape[0]
            agreed += int((ours[:-1].argmax(-1) == theirs[:-1].argmax(-1)).sum())
            tokens += following.shape[0]
    return Fidelity(
        tokens,
        own_texts,
        math.exp(surprise / max(proposed, 1)),
        math.exp(exact_surprise / max(proposed, 1)),
        divergence / tokens,
        agreed / tokens,
    )


def _log_probs(model: nn.Module, batch: Tensor) -> Tensor:
    """Log-probabilities `[T, vocab] fp32` of a batch [1, T]."""
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=batch, use_cache=False).logits[0].float(), -1)
