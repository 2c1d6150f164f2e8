"""Training a draft on answers of the target."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from ...calibration.measuring.prompts import Progress
from .answers import Answer
from .judge import Batch, at_temperature, batches, judge, logits_at, loss_of, rate, terms
from .options import SMALL, TuneOptions

# Tokens of a step, and at most at once in memory.
SMALL_STEP, STEP, AT_ONCE = 4096, 16384, 4096
CLIP = 1.0
# Training ends when its held-out part has not improved for so many epochs and steps.
PATIENCE, PATIENT_STEPS = 2, 40

Note = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """epoch: whose end was best, 0 for none. best: its acceptance on the choosing answers; start: that before."""

    epoch: int
    best: float
    start: float
    interrupted: bool


class Optimizer:
    """Muon for the matrices inside of a small draft and AdamW for the rest, linear to 0; AdamW alone for a large one,
    along a cosine. Both warm up. rate: multiplies the learning rates.
    """

    def __init__(self, model: nn.Module, steps: int, rate: float) -> None:
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        small = sum(one.numel() for one in self._parameters) <= SMALL
        apart = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        apart |= {id(head.weight)} if head is not None else set()
        inner = [one for one in self._parameters if small and one.ndim == 2 and id(one) not in apart]
        within = {id(one) for one in inner}
        others = [one for one in self._parameters if id(one) not in within]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=rate * (3e-3 if small else 3e-5), betas=(0.9, 0.95), weight_decay=0.0)
        ]
        if inner:
            self._parts.append(torch.optim.Muon(inner, lr=rate * 1e-2, momentum=0.95, weight_decay=0.01))
        warm_up = max(1, min(20, steps // 10) if small else steps * 3 // 100)

        def at(step: int) -> float:
            left = max(steps - step, 0) / max(1, steps - warm_up)
            decayed = left if small else 0.5 * (1 + math.cos(math.pi * (1 - min(left, 1))))
            return min((step + 1) / warm_up, decayed)

        self._schedules = [torch.optim.lr_scheduler.LambdaLR(part, at) for part in self._parts]

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self._parameters, CLIP)
        for part, schedule in zip(self._parts, self._schedules, strict=True):
            part.step()
            part.zero_grad(set_to_none=True)
            schedule.step()


def train(
    model: PreTrainedModel,
    answers: Sequence[Answer],
    choosing: Sequence[Answer],
    options: TuneOptions,
    progress: Progress,
    note: Note,
) -> Trained:
    """Train `model` in place, and leave it in its best state, by the acceptance on `choosing`.

    That may be its initial state. An interrupt ends the training, and the best state so far stays.
    """
    small = sum(one.numel() for one in model.parameters()) <= SMALL
    each = _Epochs(answers, options.step or (SMALL_STEP if small else STEP), options)
    start = best = rate(judge(model, choosing, options.temperature))
    state, epoch, worse, interrupted = copy.deepcopy(model.state_dict()), 0, 0, False
    peak = 0.0  # of the epochs: at high rates they may begin below a draft that has been trained already
    model.requires_grad_(True)
    optimizer = Optimizer(model, each.steps * options.epochs, options.rate or 1.0)
    try:
        for number in range(1, options.epochs + 1):
            for done, step in enumerate(each.of(number)):
                progress((number - 1) * each.steps + done, each.steps * options.epochs)
                _step(model, step, options)
                optimizer.step()
            found = rate(judge(model, choosing, options.temperature))
            note(f"epoch {number} of {options.epochs}: {found:.1%} accepted of the prompts that choose ({start:.1%})")
            worse, peak = (worse + 1 if found <= peak else 0), max(peak, found)
            if found > best:
                best, epoch, state = found, number, copy.deepcopy(model.state_dict())
            if worse >= PATIENCE and worse * each.steps >= PATIENT_STEPS:
                break
    except KeyboardInterrupt:
        interrupted = True
    model.load_state_dict(state)
    model.requires_grad_(False)
    return Trained(epoch, best, start, interrupted)


@dataclass
class _Epochs:
    """Steps of so many tokens, in a different order every epoch."""

    answers: Sequence[Answer]
    tokens: int
    options: TuneOptions

    @property
    def steps(self) -> int:
        """Of every epoch; about, since orders differ in what fits together."""
        return len(self.of(0))

    def of(self, number: int) -> list[list[list[Answer]]]:
        """The batches of every step."""
        rng = torch.Generator().manual_seed(self.options.seed * 1000 + number)
        order = torch.randperm(len(self.answers), generator=rng).tolist()
        steps: list[list[list[Answer]]] = [[]]
        size = 0
        for batch in batches(self.answers, min(AT_ONCE, self.tokens), order):
            steps[-1].append(batch)
            size += sum(len(one.prompt) + len(one.tokens) for one in batch)
            if size >= self.tokens:
                steps.append([])
                size = 0
        return [step for step in steps if step]


def _has_bf16(device: torch.device) -> bool:
    """Whether products in bf16 are faster than in fp32; CPUs without them emulate them, slowly."""
    if device.type != "cpu":
        return device.type == "cuda"
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _step(model: PreTrainedModel, step: Sequence[Sequence[Answer]], options: TuneOptions) -> None:
    """Gradients of the mean loss over all places of the step."""
    device = next(model.parameters()).device
    total = sum(len(one.tokens) for batch in step for one in batch)
    # A one-hot row says less than the distribution that it is the largest of: greedy answers are learned at 1.
    temperature = options.temperature or 1.0
    for chosen in step:
        batch = Batch.of(chosen, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=_has_bf16(device)):
            logits = logits_at(model, batch)
        wanted = at_temperature(batch.logprobs, temperature, logits.shape[-1])
        loss = loss_of(terms(logits.float() / temperature, batch.ids, *wanted), options.loss)
        (loss * len(logits) / total).backward()  # type: ignore[no-untyped-call]
