"""How much of a draft is accepted on answers that it was not trained on, before and after, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ...calibration.statistics.intervals import difference_interval
from ...calibration.statistics.results import Interval
from .answers import Answer
from .loss import terms
from .rows import Batch, at_temperature, logits_at


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
