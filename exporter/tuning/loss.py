"""What a draft is trained to: the target's distribution (forward KL), or what is accepted of its tokens.

Forward KL is the safe choice (arXiv 2503.07807, and this repository's demo draft). The hybrid of LK losses (arXiv
2602.23881) moves from KL to the acceptance itself where that is high already: KL also pays for tokens that will never
be accepted. On plain drafts nobody has shown that to be better.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .options import Loss

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
