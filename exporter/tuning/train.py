"""Training a draft on answers of the target, by KL divergence, and judging it by acceptance.

Forward KL is the safe choice for training (arXiv 2503.07807, and this repository's demo draft).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from ...calibration.measuring.prompts import Progress
from ...calibration.statistics.intervals import difference_interval
from ...calibration.statistics.results import Interval
from .answers import Answer
from .drafts import SMALL
from .options import TuneOptions

# Tokens that a step learns from, prompts included: of small drafts, of others; and at most at once in memory.
SMALL_STEP, STEP, AT_ONCE = 4096, 16384, 4096
CLIP = 1.0
Learned = TypeVar("Learned", bound=Answer)
Step = list[list[Learned]]  # its batches
# Below every probability that counts; keeps logarithms finite.
TINY = 1e-9
ALL = "all"


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

    size = SMALL_STEP if small else STEP
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


@dataclass(frozen=True)
class Batch:
    """tokens `[B, T] int64`, right-padded; places `[B, T] bool`: whose logits predict a token of an answer, P of them.

    ids `[P, K] int64`, logprobs `[P, K] fp32`: the target's rows.
    """

    tokens: Tensor
    places: Tensor
    ids: Tensor
    logprobs: Tensor

    @classmethod
    def of(cls, answers: Sequence[Answer], device: torch.device) -> Batch:
        width = max(map(len, answers)) - 1  # nothing is predicted after the last
        tokens, places = torch.zeros(len(answers), width, dtype=torch.int64), torch.zeros(len(answers), width).bool()
        for row, one in enumerate(answers):
            whole = torch.tensor([*one.prompt, *one.tokens][:-1])
            tokens[row, : len(whole)] = whole
            places[row, len(one.prompt) - 1 : len(whole)] = True
        ids = torch.from_numpy(np.concatenate([one.ids for one in answers]).astype(np.int64))
        logprobs = torch.from_numpy(np.concatenate([one.logprobs for one in answers]).astype(np.float32))
        return cls(*(part.to(device) for part in (tokens, places, ids, logprobs)))


def logits_at(model: PreTrainedModel, batch: Batch) -> Tensor:
    """`[P, vocab]`, of the batch's places.

    The logits of a Llama are its output layer and nothing else: that layer, half of a small draft, is left out for the
    prompts.
    """
    if isinstance(model, LlamaForCausalLM):
        hidden: Tensor = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return model.lm_head(hidden[batch.places])  # type: ignore[no-any-return]
    logits: Tensor = model(input_ids=batch.tokens, use_cache=False).logits
    return logits[batch.places]


def compare_rows(logits: Tensor, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Of each place, `[P]`: KL(target || draft) in nats, and sum min(target, draft), the probability that a draft token
    is accepted.

    logits `[P, vocab]`: the draft's, at temperature 1. What both give to all tokens outside of the target's K counts as
    one token.
    """
    known, rest = _at_temperature(batch.logprobs, temperature, logits.shape[-1])
    ours = torch.log_softmax(logits.float() / temperature, -1).gather(1, batch.ids)
    left = (1 - ours.exp().sum(-1)).clamp_min(TINY)
    others = rest.exp()
    divergence = (known.exp() * (known - ours)).sum(-1) + others * (rest.clamp_min(-50) - left.log())
    return divergence, torch.minimum(known.exp(), ours.exp()).sum(-1) + torch.minimum(others, left)


def _at_temperature(logprobs: Tensor, temperature: float, vocab_size: int) -> tuple[Tensor, Tensor]:
    """(log-probabilities `[P, K]` of the known tokens, `[P]` of all others together). logprobs: at 1.

    Of the others only their mass is known: they count as equally likely.
    """
    others = vocab_size - logprobs.shape[1]
    rest = torch.log1p(-logprobs.exp().sum(-1).clamp_max(1 - 1e-6)) if others > 0 else logprobs.new_full((), -torch.inf)
    rest = rest.expand(len(logprobs))
    if temperature == 1:
        return logprobs, rest
    count = math.log(max(others, 1))
    known, unknown = logprobs / temperature, (rest - count) / temperature + count
    total = torch.logsumexp(torch.cat([known, unknown[:, None]], -1), -1)
    return known - total[:, None], unknown - total


@dataclass(frozen=True)
class Judged:
    """One answer: the sum over its tokens of the probability to be accepted."""

    route: str
    accepted: float
    tokens: int


@dataclass(frozen=True)
class Comparison:
    """Acceptance, 0 to 1, of a route before and after, of the `step`th draft token of a round: of this and all before
    it, where the text is the target's. gain: the difference, with its interval by prompt.
    """

    route: str
    step: int
    prompts: int
    tokens: int
    before: float
    after: float
    gain: Interval


def judge(model: PreTrainedModel, answers: Sequence[Answer], temperature: float) -> list[Judged]:
    """Greedy, a token is accepted where the draft's likeliest token is the target's."""
    device = next(model.parameters()).device
    judged = []
    with torch.no_grad():
        for one in answers:
            batch = Batch.of([one], device)
            logits = logits_at(model, batch)
            if temperature:
                accepted = compare_rows(logits, batch, temperature)[1]
            else:
                accepted = logits.argmax(-1) == batch.ids[:, 0]
            judged.append(Judged(one.route, float(accepted.double().sum()), len(one.tokens)))
    return judged


def compare(before: Sequence[Judged], after: Sequence[Judged], step: int = 1) -> list[Comparison]:
    """By route, and last of all routes together. Both: of the same answers, in the same order."""
    rows = []
    for route in (*dict.fromkeys(one.route for one in before), None):
        pairs = [pair for pair in zip(before, after, strict=True) if route in (None, pair[0].route)]
        sizes = [old.tokens for old, _ in pairs]
        gains = [new.accepted - old.accepted for old, new in pairs]
        old, new = (sum(one.accepted for one in side) / sum(sizes) for side in zip(*pairs, strict=True))
        rows.append(Comparison(route or ALL, step, len(pairs), sum(sizes), old, new, difference_interval(gains, sizes)))
    return rows
