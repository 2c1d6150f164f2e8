"""Is speculative greedy output the target's own? Two tiers (docs/losslessness.md).

L1  against plain decoding through the same width: the tokens must be equal.
L2  against plain decoding at width 1: the first difference may only fall where the target's two best logits lie no
    further apart than the logits of the two widths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engines.base import Decoder, Logits
from .context import CachedDecoder
from .session import Options, Session


@dataclass(frozen=True)
class Equality:
    """same_width: L1 holds. first_difference: index of the first token that differs from width 1, or None.

    margin: gap of the two best logits there, at width 1; delta: largest difference of a logit between the widths there.
    """

    same_width: bool
    first_difference: int | None
    margin: float = 0.0
    delta: float = 0.0

    @property
    def near_tie(self) -> bool:
        # Either of the two best can move by delta.
        return self.first_difference is None or self.margin <= 2 * self.delta

    @property
    def passed(self) -> bool:
        return self.same_width and self.near_tie


def check_equality(session: Session, prompt: Sequence[int], max_new_tokens: int) -> Equality:
    """Generate greedily three ways from `prompt` and compare. The session's cached prefix is forgotten."""
    k, target, chunk = session.max_draft_tokens, session.engine.target, session.bundle.manifest.contract.prompt_chunk
    options = Options(stop_token_ids=(), max_new_tokens=max_new_tokens + k)
    try:
        session.reset()
        # The last round may be narrower to end at the limit; the k tokens beyond the wanted ones absorb that.
        speculative = session.generate(prompt, **options).tokens
        speculative = speculative[: max(1, len(speculative) - k)]
        session.reset()
        plain = session.generate(prompt, **(options | Options(speculate=False))).tokens[: len(speculative)]
        same_width = speculative == plain_at_width(target, prompt, len(speculative), k + 1, chunk, session.capacity)
        differing = (i for i, (ours, theirs) in enumerate(zip(speculative, plain, strict=True)) if ours != theirs)
        first = next(differing, None)
        if first is None:
            return Equality(same_width, None)
        agreed = [*prompt, *plain[:first]]
        narrow = _logits_after(target, agreed, len(prompt), 1, chunk, session.capacity)
        wide = _logits_after(target, agreed, len(prompt), k + 1, chunk, session.capacity)
        second, best = np.partition(narrow, -2)[-2:]
        return Equality(same_width, first, float(best - second), float(np.abs(narrow - wide).max()))
    finally:
        session.reset()


def plain_at_width(target: Decoder, prompt: Sequence[int], count: int, width: int, chunk: int, capacity: int) -> tuple[int, ...]:
    """`count` greedy tokens by the target alone, every pass `width` tokens wide and only its first row used.

    Near the capacity, where `width` rows no longer fit, passes are as wide as they can be.
    """
    CachedDecoder(target).prefill(prompt, len(prompt) - 1, chunk)
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(_step_at_width(target, tokens, width, capacity).argmax()))
    return tuple(tokens[len(prompt) :])


def _logits_after(target: Decoder, tokens: Sequence[int], prompt_length: int, width: int, chunk: int, capacity: int) -> Logits:
    """The logits `[vocab]` that follow `tokens`, fed as `plain_at_width` feeds them."""
    CachedDecoder(target).prefill(tokens, prompt_length - 1, chunk)
    for end in range(prompt_length, len(tokens)):
        _step_at_width(target, tokens[:end], width, capacity)
    return _step_at_width(target, tokens, width, capacity).copy()


def _step_at_width(target: Decoder, tokens: Sequence[int], width: int, capacity: int) -> Logits:
    """Feed the last of `tokens`, padded to `width`; the logits `[vocab]` that follow it."""
    position = len(tokens) - 1
    padding = [tokens[-1]] * (min(width, capacity - position) - 1)
    logits: Logits = target.step([tokens[-1], *padding], position)[0]
    return logits
