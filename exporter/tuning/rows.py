"""Answers as tensors: a draft's tokens, and the target's distribution at each place that it has to predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from .answers import Answer


@dataclass(frozen=True)
class Batch:
    """tokens `[B, T] int64`, right-padded; places `[B, T] bool`: whose logits guess a token of an answer, P of them.

    ids `[P, K] int64`, logprobs `[P, K] fp32`: the target's rows.
    """

    tokens: Tensor
    places: Tensor
    ids: Tensor
    logprobs: Tensor

    @classmethod
    def of(cls, answers: Sequence[Answer], device: torch.device) -> Batch:
        width = max(len(one.prompt) + len(one.tokens) for one in answers) - 1  # nothing is predicted after the last
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

    A new draft is a Llama, whose logits are its output layer and nothing else: that layer, half of such a draft, is
    left out for the prompts.
    """
    if isinstance(model, LlamaForCausalLM):
        hidden: Tensor = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return model.lm_head(hidden[batch.places])  # type: ignore[no-any-return]
    logits: Tensor = model(input_ids=batch.tokens, use_cache=False).logits
    return logits[batch.places]


def batches(answers: Sequence[Answer], most: int, order: Sequence[int]) -> Iterator[list[Answer]]:
    """All answers, those of about one length together, at most `most` tokens with padding or one answer.

    order: of the answers among those of one length, and then of the batches.
    """
    by_length = sorted(order, key=lambda place: len(answers[place].prompt) + len(answers[place].tokens))
    groups: list[list[Answer]] = [[]]
    for place in by_length:
        one = answers[place]
        if groups[-1] and (len(groups[-1]) + 1) * (len(one.prompt) + len(one.tokens)) > most:
            groups.append([])
        groups[-1].append(one)
    rank = {place: number for number, place in enumerate(order)}
    keyed = sorted(range(len(groups)), key=lambda number: rank.get(number, number))
    return (groups[number] for number in keyed if groups[number])


def at_temperature(logprobs: Tensor, temperature: float, vocab_size: int) -> tuple[Tensor, Tensor]:
    """(log-probabilities `[P, K]` of the known tokens, `[P]` of all others together) at `temperature`.

    logprobs: at 1. Of the others only their mass is known: they count as equally likely.
    """
    others = vocab_size - logprobs.shape[1]
    rest = torch.log1p(-logprobs.exp().sum(-1).clamp_max(1 - 1e-6)) if others > 0 else logprobs.new_full((), -torch.inf)
    rest = rest.expand(len(logprobs))
    if temperature == 1:
        return logprobs, rest
    count = float(np.log(max(others, 1)))
    known, unknown = logprobs / temperature, (rest - count) / temperature + count
    total = torch.logsumexp(torch.cat([known, unknown[:, None]], -1), -1)
    return known - total[:, None], unknown - total
