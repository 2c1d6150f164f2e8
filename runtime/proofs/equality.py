"""Is speculative greedy output the target's own? Two tiers (docs/losslessness.md).

L1  against plain decoding through the same width: the tokens must be equal.
L2  against plain decoding at width 1: the first difference may only fall where the target's two best logits lie no
    further apart than the logits of the two widths differ.

Both fail if one output merely ends before the other: rounding cannot explain that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...engines.base import Decoder, Logits
from ..sampling.parameters import UNADJUSTED, SamplingParameters
from ..session import Session
from ..state.cached_decoder import CachedDecoder
from ..state.statistics import Statistics


@dataclass(frozen=True)
class Equality:
    """same_width: L1 holds. first_difference: index of the first token that differs from width 1, or that only one of
    the two outputs has; None if they are equal.

    margin: gap of the two best logits there, at width 1; delta: largest difference of a logit between the widths there.
    complete: neither output ends early. drafted: draft tokens of the speculative output; 0 proves nothing about
    drafting.
    """

    same_width: bool
    first_difference: int | None
    margin: float = 0.0
    delta: float = 0.0
    complete: bool = True
    drafted: int = field(default=0, compare=False)

    @property
    def near_tie(self) -> bool:
        # Either of the two best can move by delta.
        return self.complete and (self.first_difference is None or self.margin <= 2 * self.delta)

    @property
    def passed(self) -> bool:
        return self.same_width and self.near_tie


@dataclass(frozen=True)
class DecodedOutput:
    """widths[i]: width of the target's pass that token i came from. drafted: number of draft tokens, by round."""

    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    drafted: tuple[int, ...]
    statistics: Statistics


def decode_request(session: Session, prompt: Sequence[int], params: SamplingParameters) -> DecodedOutput:
    """Run one request to its end."""
    tokens: list[int] = []
    widths: list[int] = []
    drafted: list[int] = []
    before, beside, statistics = 0, 0, Statistics()
    for chunk in session.stream(prompt, params):
        statistics = chunk.statistics
        drafted.append(statistics.drafted - before)
        before, beside_before = statistics.drafted, beside
        beside = statistics.leaves + statistics.fed_again
        tokens += chunk.tokens
        widths += [drafted[-1] + 1 + beside - beside_before] * len(chunk.tokens)
    return DecodedOutput(tuple(tokens), tuple(widths), tuple(drafted), statistics)


def check_equality(
    session: Session, prompt: Sequence[int], max_new_tokens: int, drafter: str | None = None
) -> Equality:
    """Generate greedily in three ways from `prompt` and compare. The session's cached prefix is lost.

    It drafts the bundle's maximum per round, whatever the policy says: so what today's policy leaves out is proved too.
    """
    params = SamplingParameters(
        **UNADJUSTED,
        stop_token_ids=(),
        max_new_tokens=max_new_tokens,
        drafter=drafter,
        num_draft_tokens=session.max_draft_tokens,
    )
    try:
        session.reset()
        output = decode_request(session, prompt, params)
        session.reset()
        plain = session.generate(prompt, params, speculate=False).tokens
        equality = judge(session, prompt, plain, output.tokens, output.widths)
        return replace(equality, drafted=sum(output.drafted))
    finally:
        session.reset()


def judge(
    session: Session,
    prompt: Sequence[int],
    plain: Sequence[int],
    speculative: Sequence[int],
    widths: Sequence[int],
    stop_tokens: Collection[int] = (),
) -> Equality:
    """Compare two greedy outputs. widths: of the target's pass that each speculative token came from.

    stop_tokens: of both requests. Lengths may differ only after a first difference, if the shorter output ends with one
    of them. Writes into the target's cache without the session's knowledge: reset the session afterwards.
    """
    first = next((i for i, (ours, theirs) in enumerate(zip(speculative, plain, strict=False)) if ours != theirs), None)
    if len(speculative) != len(plain):
        shorter = min(speculative, plain, key=len)
        if first is None or shorter[-1] not in stop_tokens:
            return Equality(False, len(shorter) if first is None else first, complete=False)
    target, chunk = session.engine.target, session.bundle.manifest.contract.prompt_chunk
    same_width = tuple(speculative) == plain_at_widths(target, prompt, widths, chunk, session.capacity)
    if first is None:
        return Equality(same_width, None)
    agreed = [*prompt, *plain[:first]]
    narrow = _logits_after(target, agreed, len(prompt), [1] * (first + 1), chunk, session.capacity)
    wide = _logits_after(target, agreed, len(prompt), widths, chunk, session.capacity)
    second, best = np.partition(narrow, -2)[-2:]
    return Equality(same_width, first, float(best - second), float(np.abs(narrow - wide).max()))


def plain_at_widths(
    target: Decoder, prompt: Sequence[int], widths: Sequence[int], chunk: int, capacity: int
) -> tuple[int, ...]:
    """Greedy tokens from the target alone, one per pass of each width, of which only the first row is used.

    Near the capacity, where a width no longer fits, passes are as wide as they can be.
    """
    CachedDecoder(target, chunk).prefill(prompt, len(prompt) - 1)
    tokens = list(prompt)
    for width in widths:
        tokens.append(int(_step_at_width(target, tokens, width, capacity).argmax()))
    return tuple(tokens[len(prompt) :])


def _logits_after(
    target: Decoder, tokens: Sequence[int], prompt_length: int, widths: Sequence[int], chunk: int, capacity: int
) -> Logits:
    """The logits `[vocab]` that follow `tokens`, fed as `plain_at_widths` feeds them."""
    CachedDecoder(target, chunk).prefill(tokens, prompt_length - 1)
    for end, width in zip(range(prompt_length, len(tokens)), widths, strict=False):
        _step_at_width(target, tokens[:end], width, capacity)
    return _step_at_width(target, tokens, widths[len(tokens) - prompt_length], capacity).copy()


def _step_at_width(target: Decoder, tokens: Sequence[int], width: int, capacity: int) -> Logits:
    """Feed the last of `tokens`, padded to `width`; the logits `[vocab]` that follow it."""
    position = len(tokens) - 1
    padding = [tokens[-1]] * (min(width, capacity - position) - 1)
    logits: Logits = target.step([tokens[-1], *padding], position)[0]
    return logits
