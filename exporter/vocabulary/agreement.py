"""How often a draft's tokens would be accepted on the target's own text, with one pass per model over each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .answers import Answer


@dataclass
class Accepted:
    """Means over `places`: where the likeliest token is the same, and of sum min(p, q) at temperature 1."""

    agreement: float = 0.0
    acceptance: float = 0.0
    places: int = 0

    def note(self, target: Tensor, draft: Tensor, ids: Tensor) -> None:
        """target `[R, vocab]`, a distribution; draft `[R, n]`, logits of the tokens `ids [n]`."""
        guessed = torch.softmax(draft, -1)
        sums = torch.minimum(target[:, ids], guessed).sum(-1)
        same = ids[draft.argmax(-1)] == target.argmax(-1)
        before, self.places = self.places, self.places + len(sums)
        self.agreement = (self.agreement * before + float(same.sum())) / self.places
        self.acceptance = (self.acceptance * before + float(sums.sum())) / self.places


def accepted(
    target: PreTrainedModel, draft: PreTrainedModel, answers: Sequence[Answer], kept: Sequence[int]
) -> tuple[Accepted, Accepted]:
    """(of the draft with the `kept` ids only, of the draft as it is) over the places of the answers' tokens."""
    cut, whole = Accepted(), Accepted()
    some = torch.tensor(kept)
    with torch.no_grad():
        for prompt, answer in answers:
            wanted, guessed = _rows(target, prompt, answer), _rows(draft, prompt, answer)
            size = min(wanted.shape[1], guessed.shape[1])  # vocabularies are padded to different sizes
            wanted, guessed = torch.softmax(wanted, -1), guessed[:, :size]
            cut.note(wanted, guessed[:, some], some)
            whole.note(wanted, guessed, torch.arange(size))
    return cut, whole


def _rows(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """`[answer, vocab] fp32`: the logits that each token of the answer was taken from."""
    tokens = torch.tensor([[*prompt, *answer]])
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return logits
