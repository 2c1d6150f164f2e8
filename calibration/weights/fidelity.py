"""What quantizing does to a model's distributions, on text that it was not calibrated on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...bundle import Fidelity
from .fake_quant import quantized_twin
from .recipe import Recipe

# One batch in so many is kept from calibration, to judge by.
EVERY = 4
MOST_TOKENS = 1024


def split(batches: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Batches to calibrate on and others, at most MOST_TOKENS, to judge by; of two or three, the last is to judge by."""
    held = list(batches[EVERY - 1 :: EVERY]) or list(batches[-1:])
    used = [batch for batch in batches if not any(batch is other for other in held)]
    kept: list[Tensor] = []
    total = 0
    for batch in held:
        if kept and total + batch.shape[-1] > MOST_TOKENS:
            break
        kept.append(batch)
        total += batch.shape[-1]
    return used or list(batches), kept


def measure_fidelity(model: nn.Module, recipe: Recipe, batches: Sequence[Tensor], own_texts: bool) -> Fidelity:
    """Of `model` in the recipe's weights against itself.

    batches: each [1, T] int64, T of 2 and more; own_texts: of the user's.
    """
    exact = [_log_probs(model, batch) for batch in batches]
    surprise = exact_surprise = divergence = 0.0
    agreed = tokens = 0
    with quantized_twin(model, recipe):
        for batch, theirs in zip(batches, exact, strict=True):
            ours = _log_probs(model, batch)
            following = batch[0, 1:, None]
            surprise -= float(ours[:-1].gather(1, following).double().sum())
            exact_surprise -= float(theirs[:-1].gather(1, following).double().sum())
            divergence += float((theirs.exp() * (theirs - ours)).sum(-1).double().mean()) * following.shape[0]
            agreed += int((ours[:-1].argmax(-1) == theirs[:-1].argmax(-1)).sum())
            tokens += following.shape[0]
    return Fidelity(
        tokens,
        own_texts,
        math.exp(surprise / tokens),
        math.exp(exact_surprise / tokens),
        divergence / tokens,
        agreed / tokens,
    )


def _log_probs(model: nn.Module, batch: Tensor) -> Tensor:
    """`[T, vocab] fp32`."""
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=batch, use_cache=False).logits[0].float(), -1)
