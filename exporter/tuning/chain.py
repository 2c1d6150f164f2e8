"""A head trained and judged on several steps of drafting from every place of a text at once.

Step j of row i reads token i + 1 + j and what step j - 1 of this row gave back, and attends to the true rows before i
and to what row i has drafted. Training on drafted rows is what makes the second token right (EAGLE-3's training-time
test, arXiv 2503.01840, section 3.2): without, it is accepted in a few of a hundred places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ...calibration.measuring.prompts import Progress
from .heads import Head, Lesson
from .options import TuneOptions
from .train import Judged, Step, autocast, learn, optimizers

STEPS = 3
# On the loss of each further step.
DECAY = 0.8
# Share of the training with one step alone, which costs a third.
ALONE = 0.45
DROPOUT = 0.1
# Tokens of an optimizer step.
SIZE = 1024


@dataclass(frozen=True)
class Lessons:
    """Padded on the right, to n tokens. tokens `[B, n]`; states `[B, n - 1, F]`, of the taps; last `[B, n - 1, D]`, of
    what the output layer reads; lengths `[B]`, in tokens.
    """

    tokens: Tensor
    states: Tensor
    last: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, head: Head, batch: Sequence[Lesson]) -> Lessons:
        device = head.model.device
        tokens = pad_sequence([torch.tensor([*one.prompt, *one.tokens]) for one in batch], batch_first=True)
        states = pad_sequence([one.states for one in batch], batch_first=True).to(device).float()
        width = head.model.tap_width
        lengths = torch.tensor([len(one) for one in batch])
        return cls(tokens.to(device), states[..., :-width], states[..., -width:], lengths.to(device))

    def drafted(self, head: Head, steps: int, dropout: float) -> Iterator[Tensor]:
        """Of each step what the output layer reads, `[B, n - 1, H]`."""
        hidden = head.model.fuse(functional.dropout(self.states, dropout, dropout > 0))
        return head.model.drafted(functional.pad(self.tokens[:, 1:], (0, steps)), hidden, steps)


def train_head(head: Head, lessons: Sequence[Lesson], options: TuneOptions, progress: Progress) -> bool:
    """Train it in place, by cross-entropy with the target over the tokens that it has, at all places of prompts and
    answers. Whether it went to the end: an interrupt ends it early.
    """
    model = head.model
    model.requires_grad_(True)
    model.embed_tokens.requires_grad_(False)
    model.lm_head.requires_grad_(False)

    def backward(step: Step[Lesson], done: float) -> None:
        total = sum(map(len, (one for batch in step for one in batch)))
        for batch in step:
            with autocast(model.device):
                loss = loss_of(head, Lessons.of(head, batch), 1 if done < ALONE else STEPS)
            (loss / total).backward()  # type: ignore[no-untyped-call]

    return learn(model, lessons, SIZE, options.epochs, optimizers(model, head.rate, True), backward, progress)


def loss_of(head: Head, batch: Lessons, steps: int) -> Tensor:
    """Summed over rows."""
    output, loss = head.model.lm_head.weight, torch.zeros((), device=batch.last.device)
    layer = head.target.get_output_embeddings().weight
    layer = layer if head.model.target_ids is None else layer[head.model.target_ids]
    rows = torch.arange(batch.last.shape[1], device=loss.device)
    for step, read in enumerate(batch.drafted(head, steps, DROPOUT)):
        # Row i predicts the token after i + 1 + step, where the target has said what it expects.
        known = rows + 1 + step < batch.lengths[:, None] - 1
        teacher = batch.last.roll(-1 - step, 1)[known]
        wanted = functional.linear(teacher, layer).float().softmax(-1)
        said = functional.linear(read[known], output).float()
        loss = loss + DECAY**step * functional.cross_entropy(said, wanted, reduction="sum")
    return loss


def judge_head(head: Head, lessons: Sequence[Lesson]) -> list[list[Judged]]:
    """By step: a token is accepted where the head's likeliest tokens, up to this one, are the target's."""
    judged: list[list[Judged]] = [[] for _ in range(STEPS)]
    for one in lessons:
        with torch.no_grad(), autocast(head.model.device):
            batch = Lessons.of(head, [one])
            right = torch.ones(batch.last.shape[1], dtype=torch.bool)
            for step, read in enumerate(batch.drafted(head, STEPS, 0.0)):
                said = head.model.lm_head(read[0]).argmax(-1).cpu()
                said = said if head.model.target_ids is None else head.model.target_ids[said]
                # The first row that predicts a token of the answer is two before it.
                first, last = max(len(one.prompt) - 2, 0), len(one) - 2 - step
                if last <= first:
                    break
                chosen = torch.tensor([*one.prompt, *one.ids[:, 0].tolist()])[first + 2 + step :]
                right[first:last] &= said[first:last] == chosen
                judged[step].append(Judged(one.route, float(right[first:last].sum()), last - first))
    return judged
