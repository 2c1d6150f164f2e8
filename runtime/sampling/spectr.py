"""SpecTr: candidates in addition to each draft token, drawn from the same row of the draft and judged with it.

The tree is a comb: the draft continues after its own tokens only. If a candidate is accepted, the round ends; if it has
a row in the verify pass, it gives one more token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from .distribution import Distribution, Probabilities

# Bisection steps in the search for rho, which leave it less than 1e-11 too large.
HALVINGS = 40


@dataclass(frozen=True)
class Candidate:
    """A token in the position of draft token `place`, from 0: it follows the draft tokens before that one."""

    place: int
    token: int


def matching_candidate(candidates: Sequence[Candidate], count: int, token: int) -> int | None:
    """Which of `candidates` is `token`, which follows `count` accepted draft tokens; None if none is."""
    return next((index for index, one in enumerate(candidates) if (one.place, one.token) == (count, token)), None)


def judge(target: Distribution, draft: Distribution, drawn: Sequence[int], uniforms: Probabilities) -> int:
    """The token that follows, with the target's distribution: k-sequential selection (Sun et al. 2023, SpecTr, arXiv
    2310.15141, algorithm 2) of tokens drawn independently from `draft`; others are not judged losslessly.

    uniforms: one per drawn token, as in `acceptance.py`, and one for a draw. The division factor rho is rounded up: a
    smaller one is not lossless, a larger one accepts less. The residual is not that of token verification, but a single
    token is judged as there.
    """
    drafted = draft.over(target)
    rho, accepted = _division(target.probs, drafted, len(drawn))
    for token, uniform in zip(drawn, uniforms, strict=False):
        if uniform * rho * draft.of(token) < target.of(token):
            return token
    taken = np.minimum(drafted, target.probs / rho)
    share = float(taken.sum())  # the probability that one token is accepted
    left = Distribution(np.maximum(target.probs - taken * (accepted / share if share else 0.0), 0.0), target.tokens)
    return (left if left.mass > 0.0 else target).draw(float(uniforms[-1]))


def _division(target: Probabilities, draft: Probabilities, count: int) -> tuple[float, float]:
    """(rho, the probability that one of `count` drawn tokens is accepted): 1 - (1 - b(rho)) ** count <= rho * b(rho).

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


class Candidates:
    """Those of one request. Their number at a position does not depend on anything that is drawn there.

    others: what was drawn in addition to each of the round's draft tokens.
    """

    def __init__(self) -> None:
        self._most, self._never = 0, frozenset[int]()
        self._count = 0
        self._tokens: list[int] = []
        self.others: list[list[int]] = []

    def allow(self, most: int, never: Collection[int]) -> None:
        """most: candidates per round. never: tokens after which no further token is needed."""
        self._most, self._never = most, frozenset(never)

    def begin(self, count: int) -> None:
        """Begin a round of up to `count` draft tokens, over whose positions the candidates are spread evenly."""
        self._count, self._tokens, self.others = count, [], []

    def add(self, draft: Distribution, token: int, random: Callable[[int], Probabilities]) -> None:
        """`token` was drawn from `draft` as the next draft token."""
        place, count = len(self._tokens), max(1, self._count)
        most = self._most // count + (place < self._most % count)
        self._tokens.append(token)
        self.others.append([draft.draw(float(uniform)) for uniform in random(most)] if most else [])

    def add_deterministic(self, token: int) -> None:
        """The next draft token was not drawn, so it has no candidates."""
        self._tokens.append(token)
        self.others.append([])

    def take(self, max_rows: int) -> list[Candidate]:
        """Those that get a row, `max_rows` at most, from the front on: the others are draft tokens, or end the text."""
        rows = [
            Candidate(place, token)
            for place, (drafted, others) in enumerate(zip(self._tokens, self.others, strict=True))
            for token in dict.fromkeys(others)
            if token != drafted and token not in self._never
        ]
        return rows[: max(0, max_rows)]

    def verify(
        self,
        target: Callable[[int], Distribution],
        draft_probs: Sequence[Distribution],
        draft_tokens: Sequence[int],
        random: Callable[[int], Probabilities],
    ) -> tuple[int, int]:
        """Judge the round's draft, like `acceptance.Verify`; its candidates are then forgotten."""
        others, self._tokens, self.others = self.others[: len(draft_tokens)], [], []
        uniforms, start = random(sum(map(len, others)) + 2 * len(others) + 1), 0
        for index, (token, draft, drawn) in enumerate(zip(draft_tokens, draft_probs, others, strict=True)):
            end = start + len(drawn) + 2
            chosen = judge(target(index), draft, [token, *drawn], uniforms[start:end])
            if chosen != token:
                return index, chosen
            start = end
        return len(draft_tokens), target(len(draft_tokens)).draw(float(uniforms[start]))
