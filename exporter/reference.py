"""Logits of the Hugging Face model, without any cache, for every step of the proof's schedule."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ..bundle import Contract
from ..runtime.parity import ReferenceStep, contexts, num_rows, schedule


def record_reference(model: PreTrainedModel, contract: Contract, vocab_size: int) -> list[ReferenceStep]:
    """Each step's logits come from a forward pass over the whole sequence that its tokens have seen."""
    steps = schedule(contract, vocab_size)
    return [
        ReferenceStep(step, _logits(model, context, num_rows(step, contract))) for step, context in zip(steps, contexts(steps), strict=True)
    ]


@torch.no_grad()
def _logits(model: PreTrainedModel, context: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    output = model(input_ids=torch.from_numpy(context)[None], use_cache=False)
    logits: NDArray[np.float32] = output.logits[0, -rows:].float().numpy()
    return logits.copy()
