"""The target's own answers: the text that a draft has to predict.

How often a draft's tokens would be accepted on the target's own text, with one pass per model over each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

# Tokens of an answer. Prompts that are continued at once.
ANSWER_TOKENS = 96
AT_ONCE = 8
# Two batches of three are greedy, as most requests are; the third is drawn at temperature 1.
SAMPLED_EVERY = 3

Answer = tuple[tuple[int, ...], tuple[int, ...]]  # prompt, answer


def own_answers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], stops: Sequence[int], step: Callable[[str], None]
) -> list[Answer]:
    """Each prompt with what `model` writes after it, ending in a stop token if it reaches one. Reproducible."""
    found: dict[int, Answer] = {}
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    batches = [order[start : start + AT_ONCE] for start in range(0, len(order), AT_ONCE)]
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        for number, batch in enumerate(batches):
            step(f"answers {number + 1} of {len(batches)}")
            chosen = [prompts[place] for place in batch]
            written = _continue(model, chosen, stops, sampled=number % SAMPLED_EVERY == SAMPLED_EVERY - 1)
            for place, row in zip(batch, written.tolist(), strict=True):
                found[place] = tuple(prompts[place]), _up_to_stop(row, stops)
    return [found[place] for place in range(len(prompts))]


def _continue(model: PreTrainedModel, prompts: Sequence[Sequence[int]], stops: Sequence[int], sampled: bool) -> Tensor:
    longest = max(map(len, prompts))
    pad = stops[0] if stops else 0
    tokens = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    # The checkpoint's own generation settings are for its users; here the plain distribution is wanted.
    config = GenerationConfig(
        max_new_tokens=ANSWER_TOKENS, do_sample=sampled, top_k=0, eos_token_id=list(stops) or None, pad_token_id=pad
    )
    rows: Tensor = model.generate(tokens, attention_mask=mask, generation_config=config)
    return rows[:, longest:]


def _up_to_stop(row: Sequence[int], stops: Sequence[int]) -> tuple[int, ...]:
    end = next((place + 1 for place, token in enumerate(row) if token in stops), len(row))
    return tuple(row[:end])


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
