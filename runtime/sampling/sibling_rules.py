"""Rules for several candidates per draft position, drawn from the draft's row: which token follows there.

Each returns a token with the target's distribution, whatever candidates were drawn (docs/losslessness.md). A rule
belongs to the way in which its candidates are drawn; with others it is not lossless. A single candidate is judged as in
token verification. Uniforms as in `acceptance.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .distribution import Distribution, Probabilities

# Bisection steps in the search for rho, which leave it less than 1e-11 too large.
HALVINGS = 40

# (target, draft, candidates, uniforms [len(candidates) + 1], the last one for a draw) -> token
Judge = Callable[[Distribution, Distribution, Sequence[int], Probabilities], int]
# (draft, first, uniforms [most]) -> the candidates after the first one, at most as many as uniforms
Draw = Callable[[Distribution, int, Probabilities], list[int]]


def draw_with_replacement(draft: Distribution, first: int, uniforms: Probabilities) -> list[int]:
    """Independent draws; a token that is drawn twice is tried twice."""
    return [draft.draw(float(uniform)) for uniform in uniforms]


def draw_without_replacement(draft: Distribution, first: int, uniforms: Probabilities) -> list[int]:
    """Each drawn from what the ones before it leave, so there are no more than the draft has possible tokens."""
    found: list[int] = []
    for uniform in uniforms:
        draft = draft.without(found[-1] if found else first)
        if not draft.mass > 0.0:
            break
        found.append(draft.draw(float(uniform)))
    return found


def judge_spectr(target: Distribution, draft: Distribution, candidates: Sequence[int], uniforms: Probabilities) -> int:
    """k-sequential selection (Sun et al. 2023, SpecTr, arXiv 2310.15141, algorithm 2) of independent draws.

    Its division factor rho is rounded up: a smaller one is not lossless, a larger one accepts less. Its residual is not
    that of token verification.
    """
    told = draft.over(target)
    rho, accepted = _division(target.probs, told, len(candidates))
    for token, uniform in zip(candidates, uniforms, strict=False):
        if uniform * rho * draft.of(token) < target.of(token):
            return token
    taken = np.minimum(told, target.probs / rho)
    share = float(taken.sum())  # the probability of one candidate
    left = Distribution(np.maximum(target.probs - taken * (accepted / share if share else 0.0), 0.0), target.tokens)
    return (left if left.mass > 0.0 else target).draw(float(uniforms[-1]))


def _division(target: Probabilities, draft: Probabilities, count: int) -> tuple[float, float]:
    """(rho, the probability that one of `count` candidates is accepted): 1 - (1 - b(rho)) ** count <= rho * b(rho).

    b(rho), the probability for one, is the sum of min(draft, target / rho): the draft's probability where the ratio of
    both is at least rho, and the target's over rho elsewhere.
    """
    if count == 1:
        return 1.0, float(np.minimum(target, draft).sum())
    both = (target > 0.0) & (draft > 0.0)
    target, draft = target[both], draft[both]
    order = np.argsort(target / draft)
    ratios = (target / draft)[order].tolist()
    below = np.append(0.0, target[order].cumsum()).tolist()
    drafted = np.append(draft[order][::-1].cumsum()[::-1], 0.0).tolist()

    def chances(rho: float) -> tuple[float, float]:
        place = bisect_left(ratios, rho)
        one = drafted[place] + below[place] / rho
        return rho * one, 1.0 - max(0.0, 1.0 - one) ** count

    low, high = 1.0, float(count)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        covered, accepted = chances(middle)
        low, high = (low, middle) if accepted <= covered else (middle, high)
    return high, min(chances(high))


def judge_recursive(
    target: Distribution, draft: Distribution, candidates: Sequence[int], uniforms: Probabilities
) -> int:
    """Recursive rejection of draws without replacement (Jeon et al. 2024, arXiv 2402.14160; Chen et al. 2024, Sequoia,
    arXiv 2402.12374): a rejected candidate leaves the residual to the next one, which was drawn without it.
    """
    for token, uniform in zip(candidates, uniforms, strict=False):
        if uniform * draft.of(token) < target.of(token):
            return token
        left = target.excess(1.0, draft)
        if not left.mass > 0.0:
            break  # both are the same distribution, up to rounding
        target, draft = left.scaled(1.0 / left.mass), draft.without(token)
    return target.draw(float(uniforms[-1]))


@dataclass(frozen=True)
class SiblingRule:
    """How candidates are drawn, and how such are judged."""

    draw: Draw
    judge: Judge


SIBLING_RULES: dict[str, SiblingRule] = {
    "spectr": SiblingRule(draw_with_replacement, judge_spectr),
    "recursive": SiblingRule(draw_without_replacement, judge_recursive),
}
