"""How near a draft is to the target on its answers: KL divergence, which it is trained by, and acceptance, by which it
is judged.

Forward KL is the safe choice for training (arXiv 2503.07807, and this repository's demo draft).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from ...calibration.statistics.intervals import difference_interval
from ...calibration.statistics.results import Interval
from .answers import Answer

# Below every probability that counts; keeps logarithms finite.
TINY = 1e-9
ALL = "all"


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
