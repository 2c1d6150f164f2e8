"""Which of several readings of a draft is right: that of whose tokens the target would accept most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from .eagle3 import Eagle3Draft, Eagle3Form

TEXTS, TOKENS = 16, 128  # how many, and of each the first


def acceptance(
    model: Eagle3Draft, target: PreTrainedModel, texts: Sequence[Tensor], forms: Sequence[Eagle3Form]
) -> list[float]:
    """By form how many of two draft tokens a place of `texts`, `[1, T]` each, would be kept: are the target's choice,
    the second only after the first. Both are drafted from the text's own tokens.

    model: of any of the forms, whose weights are the same.
    """
    places, kept = 0, [0] * len(forms)
    for tokens in texts:
        rows = tokens.shape[1] - 2
        if rows < 1:
            continue
        with torch.no_grad():
            output = target(input_ids=tokens, output_hidden_states=True, use_cache=False)
            choice = output.logits[0].argmax(-1)
            for index, form in enumerate(forms):
                model.form, model.taps = form, form.taps
                hidden = torch.cat([output.hidden_states[tap][:, :rows] for tap in form.taps], -1)
                kept[index] += int(_kept(model, tokens, model.fuse(hidden), choice))
        places += rows
    return [count / max(places, 1) for count in kept]


def _kept(model: Eagle3Draft, tokens: Tensor, hidden: Tensor, choice: Tensor) -> Tensor:
    """hidden `[1, rows, H]`: of the first of `tokens [1, rows + 2]`. choice `[rows + 2]`: what the target says next."""
    rows = hidden.shape[1]
    before = torch.full((rows, rows), -math.inf).triu(1)
    itself = torch.full((rows, rows), -math.inf).fill_diagonal_(0)
    cache, right, kept = DynamicCache(), torch.ones(rows, dtype=torch.bool), torch.zeros(())
    for step in range(2):
        # A drafted row sees the true ones before it, and itself.
        read, hidden = model.run(
            model.embed_tokens(tokens[:, step + 1 :][:, :rows]),
            hidden,
            attention_mask=torch.cat([before, *[itself] * step], 1)[None, None],
            position_ids=torch.arange(step, step + rows)[None],
            past_key_values=cache,
        )
        said = model.lm_head(read)[0].argmax(-1)
        said = said if model.target_ids is None else model.target_ids[said]
        right = right & (said == choice[step + 1 :][:rows])
        kept = kept + right.sum()
    return kept
