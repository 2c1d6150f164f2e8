"""How much of a draft is accepted on answers that it was not trained on, before and after, prompt by prompt.

Answers as tensors: a draft's tokens, and the target's distribution at each place that it has to predict.

What a draft is trained to: the target's distribution (forward KL), or what is accepted of its tokens.

Forward KL is the safe choice (arXiv 2503.07807, and this repository's demo draft). The hybrid of LK losses (arXiv
2602.23881) moves from KL to the acceptance itself where that is high already: KL also pays for tokens that will never
be accepted. On plain drafts nobody has shown that to be better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from ...calibration.statistics.intervals import difference_interval
from ...calibration.statistics.results import Interval
from .answers import Answer
from .options import Loss


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


ETA = 3.0
# Below every probability that counts; keeps logarithms finite.
TINY = 1e-9


@dataclass(frozen=True)
class Terms:
    """By place, `[P]`: KL(p || q) in nats, and sum min(p, q), the chance that a draft token is accepted."""

    divergence: Tensor
    acceptance: Tensor


def terms(logits: Tensor, ids: Tensor, known: Tensor, rest: Tensor) -> Terms:
    """logits `[P, vocab]`: the draft's, at the temperature of the target's `known [P, K]` (of `ids`) and `rest [P]`.

    What both give to all other tokens counts as one token.
    """
    ours = torch.log_softmax(logits.float(), -1).gather(1, ids)
    left = (1 - ours.exp().sum(-1)).clamp_min(TINY)
    others = rest.exp()
    divergence = (known.exp() * (known - ours)).sum(-1) + others * (rest.clamp_min(-50) - left.log())
    acceptance = torch.minimum(known.exp(), ours.exp()).sum(-1) + torch.minimum(others, left)
    return Terms(divergence, acceptance)


def loss_of(found: Terms, kind: Loss) -> Tensor:
    """The mean over all places."""
    if kind == "kl":
        return found.divergence.mean()
    weight = torch.exp(-ETA * found.acceptance.detach())
    return (weight * found.divergence + (1 - weight) * (1 - found.acceptance)).mean()


@dataclass(frozen=True)
class Judged:
    """One answer: the sum over its tokens of the chance to be accepted."""

    route: str
    accepted: float
    tokens: int


@dataclass(frozen=True)
class Comparison:
    """Acceptance, 0 to 1, of a route before and after. gain: the difference, with its interval by prompt."""

    route: str
    prompts: int
    tokens: int
    before: float
    after: float
    gain: Interval


def judge(model: PreTrainedModel, answers: Sequence[Answer], temperature: float) -> list[Judged]:
    """Of each answer. Greedy, a token is accepted where the draft's likeliest token is the target's."""
    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for one in answers:
            batch = Batch.of([one], device)
            logits = logits_at(model, batch).float()
            if temperature:
                wanted = at_temperature(batch.logprobs, temperature, logits.shape[-1])
                chances = terms(logits / temperature, batch.ids, *wanted).acceptance
            else:
                chances = (logits.argmax(-1) == batch.ids[:, 0]).float()
            found.append(Judged(one.route, float(chances.double().sum()), len(chances)))
    return found


def rate(judged: Sequence[Judged]) -> float:
    """The fraction of all tokens that is accepted."""
    return sum(one.accepted for one in judged) / max(sum(one.tokens for one in judged), 1)


def compare(before: Sequence[Judged], after: Sequence[Judged], route: str) -> Comparison:
    """Both: of the same answers, in the same order."""
    sizes = [one.tokens for one in before]
    gains = [ours.accepted - theirs.accepted for theirs, ours in zip(before, after, strict=True)]
    return Comparison(route, len(before), sum(sizes), rate(before), rate(after), difference_interval(gains, sizes))


def by_route(before: Sequence[Judged], after: Sequence[Judged]) -> list[Comparison]:
    found = []
    for route in dict.fromkeys(one.route for one in before):
        places = [place for place, one in enumerate(before) if one.route == route]
        found.append(compare([before[place] for place in places], [after[place] for place in places], route))
    return found
