"""One block of a DFlash or DSpark draft, each slot after the true token before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ANCHOR = 7


def computed(model: Any, aux: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits `[slots, m]` and confidences `[slots]` after true tokens. aux `[1, T, F]`, ids `[1, T]`."""
    with torch.no_grad():
        anchor, end = ids[0, ANCHOR : ANCHOR + 1], torch.tensor([ANCHOR])
        logits, states = model.blocks(model.fuse(aux[:, :ANCHOR]), anchor, end)
        chained, confidence = model.chain(ids[:, ANCHOR : ANCHOR + model.form.slots], states, logits)
    return chained[0], None if confidence is None else confidence[0]
