"""Training a draft on answers of the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from ...calibration.measuring.prompts import Progress
from .answers import Answer
from .drafts import SMALL
from .judge import Batch, compare_rows, logits_at
from .options import TuneOptions

# Tokens of a step, and at most at once in memory.
SMALL_STEP, STEP, AT_ONCE = 4096, 16384, 4096
CLIP = 1.0
Learned = TypeVar("Learned", bound=Answer)
Step = list[list[Learned]]  # its batches


def train(
    model: PreTrainedModel, answers: Sequence[Answer], options: TuneOptions, rate: float, progress: Progress
) -> bool:
    """Train `model` in place by the divergence from the target. Whether it went to the end: an interrupt ends it early.

    rate: factor on the learning rates.
    """
    small = model.num_parameters() <= SMALL
    model.requires_grad_(True)

    def backward(step: Step[Answer], done: float) -> None:
        _backward(model, step, options.temperature)

    size = options.step or (SMALL_STEP if small else STEP)
    return learn(model, answers, size, options.epochs, optimizers(model, rate, small), backward, progress)


def learn(
    model: PreTrainedModel,
    answers: Sequence[Learned],
    size: int,
    epochs: int,
    chosen: Sequence[torch.optim.Optimizer],
    backward: Callable[[Step[Learned], float], None],
    progress: Progress,
) -> bool:
    """As `train`. size: tokens of a step. backward: of a step, and how much of the training is done, from 0 to 1."""
    rng = random.Random(0)
    steps = [step for _ in range(epochs) for step in epoch(answers, size, rng)]
    warm_up = max(1, min(20, len(steps) // 10))

    def factor(step: int) -> float:
        return min((step + 1) / warm_up, (len(steps) - step) / max(1, len(steps) - warm_up))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor) for optimizer in chosen]
    try:
        for done, step in enumerate(steps):
            progress(done, len(steps))
            backward(step, done / len(steps))
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for optimizer, schedule in zip(chosen, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                schedule.step()
        progress(len(steps), len(steps))
    except KeyboardInterrupt:
        return False
    finally:
        model.requires_grad_(False)
    return True


def epoch(answers: Sequence[Learned], tokens: int, rng: random.Random) -> list[Step[Learned]]:
    """All answers in a random order, as steps of about `tokens` tokens. A batch has answers of about one length."""
    batches = in_batches(rng.sample(answers, len(answers)), min(AT_ONCE, tokens))
    rng.shuffle(batches)
    steps: list[Step[Learned]] = []
    left = 0
    for batch in batches:
        if left <= 0:
            steps.append([])
            left = tokens
        steps[-1].append(batch)
        left -= sum(map(len, batch))
    return steps


def in_batches(answers: Sequence[Learned], tokens: int) -> Step[Learned]:
    """Of about one length each, and padded at most so many tokens, unless one answer has more."""
    batches: Step[Learned] = [[]]
    for one in sorted(answers, key=len):
        if batches[-1] and (len(batches[-1]) + 1) * len(one) > tokens:
            batches.append([])
        batches[-1].append(one)
    return batches


def optimizers(model: PreTrainedModel, rate: float, small: bool) -> list[torch.optim.Optimizer]:
    """Of what requires gradients: Muon for the matrices inside of a small draft and AdamW for the rest; AdamW alone for
    a large one.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    tables.add(id(model.get_output_embeddings().weight))
    learning = [one for one in model.parameters() if one.requires_grad]
    inner = [one for one in learning if small and one.ndim == 2 and id(one) not in tables]
    within = {id(one) for one in inner}
    others = [one for one in learning if id(one) not in within]
    adam = torch.optim.AdamW(others, lr=rate * (3e-3 if small else 3e-5), betas=(0.9, 0.95), weight_decay=0.0)
    return [adam, torch.optim.Muon(inner, lr=rate * 1e-2, momentum=0.95, weight_decay=0.01)] if inner else [adam]


def autocast(device: torch.device) -> torch.autocast:
    """Products in bf16 where these are faster than in fp32; CPUs without them emulate them, slowly."""
    fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=fast and device.type in ("cpu", "cuda"))


def _backward(model: PreTrainedModel, step: Step[Answer], temperature: float) -> None:
    """Gradients of the mean divergence over all places of the step.

    A one-hot row says less than the distribution that it is the largest of: greedy answers are learned at 1.
    """
    device = model.device
    total = sum(len(one.tokens) for batch in step for one in batch)
    for chosen in step:
        batch = Batch.of(chosen, device)
        with autocast(device):
            logits = logits_at(model, batch)
        divergence, _ = compare_rows(logits, batch, temperature or 1.0)
        (divergence.sum() / total).backward()  # type: ignore[no-untyped-call]
