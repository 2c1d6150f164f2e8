"""Which drafted tokens stand, and which token follows them: the rules that keep the output the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..engines.base import Logits
from .sampling import Probabilities, SamplingParameters, draw, processed_probabilities


class Rule(Protocol):
    def propose(self, draft_logits: Logits) -> int:
        """The next draft token from the draft's logits `[vocab]`, remembered until `accept`."""
        ...

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        """From target logits `[num_draft_tokens + 1, vocab]`: `(num_accepted, next_token)`."""
        ...


class GreedyRule:
    """Temperature 0: a draft token stands while it is the target's argmax; the lowest id wins a tie.

    `vocab_size` is the target's; a draft that knows more ids never proposes them.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def propose(self, draft_logits: Logits) -> int:
        return int(draft_logits[: self._vocab_size].argmax())

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        # A row at a time: rows behind the first rejection are never looked at.
        for index, draft_token in enumerate(draft_tokens):
            best = int(target_logits[index].argmax())
            if best != draft_token:
                return index, best
        return len(draft_tokens), int(target_logits[len(draft_tokens)].argmax())


class SamplingRule:
    """Token verification (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1), over processed distributions.

    Noise for drafting and for acceptance are independent streams of one seed. `vocab_size` is the target's; a
    draft that knows fewer ids gives the others probability 0, one that knows more never proposes them.
    """

    def __init__(self, parameters: SamplingParameters, vocab_size: int) -> None:
        self._parameters = parameters
        self._vocab_size = vocab_size
        draft_seed, target_seed = np.random.SeedSequence(parameters.seed).spawn(2)
        self._draft_noise = np.random.default_rng(draft_seed)
        self._target_noise = np.random.default_rng(target_seed)
        self._draft_probs: list[Probabilities] = []

    def propose(self, draft_logits: Logits) -> int:
        draft_probs = np.zeros(self._vocab_size)
        known = draft_logits[None, : self._vocab_size]
        draft_probs[: known.shape[1]] = processed_probabilities(known, self._parameters)[0]
        self._draft_probs.append(draft_probs)
        return draw(draft_probs, self._draft_noise.random())

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        draft_probs, self._draft_probs = self._draft_probs, []
        target_probs = processed_probabilities(target_logits, self._parameters)
        return verify_tokens(target_probs, draft_probs, draft_tokens, self._target_noise.random(len(draft_tokens) + 1))


def verify_tokens(
    target_probs: Probabilities, draft_probs: Sequence[Probabilities], draft_tokens: Sequence[int], uniforms: Probabilities
) -> tuple[int, int]:
    """Token verification (arXiv 2211.17192, algorithm 1; arXiv 2302.01318, algorithm 2).

    target_probs `[num_draft_tokens + 1, vocab]`; draft_probs, of the same vocabulary, are what the tokens were
    drawn from; uniforms `[num_draft_tokens + 1]` in [0, 1), the last one for the token that follows.
    Returns `(num_accepted, next_token)`.
    """
    for index, (draft_token, draft) in enumerate(zip(draft_tokens, draft_probs, strict=True)):
        # u < target / draft without the division; strict, since u may be 0 where target is 0.
        if not uniforms[index] * draft[draft_token] < target_probs[index][draft_token]:
            residual = np.maximum(target_probs[index] - draft, 0.0)
            # A residual that rounds to nothing means that both distributions are the same.
            return index, draw(residual if residual.any() else target_probs[index], uniforms[-1])
    return len(draft_tokens), draw(target_probs[len(draft_tokens)], uniforms[-1])


def make_rule(parameters: SamplingParameters, vocab_size: int) -> Rule:
    return GreedyRule(vocab_size) if parameters.greedy else SamplingRule(parameters, vocab_size)
