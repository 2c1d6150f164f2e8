"""Additional candidates for the positions of a draft, drawn from the same rows and judged with the draft tokens.

The tree is a comb: at each position the draft continues after its first candidate. If one of the others is accepted,
the round ends; if it has a row in the verify pass, it gives one more token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .distribution import Distribution, Probabilities
from .leaves import Leaf
from .sibling_rules import SIBLING_RULES, Judge

Random = Callable[[int], Probabilities]  # uniforms in [0, 1), as many as asked for


def verify_siblings(
    judge: Judge,
    target: Callable[[int], Distribution],
    draft_probs: Sequence[Distribution],
    draft_tokens: Sequence[int],
    siblings: Sequence[Sequence[int]],
    uniforms: Probabilities,
) -> tuple[int, int]:
    """Like `acceptance.Verify`, with `siblings[i]` in addition to draft_tokens[i], both from draft_probs[i].

    uniforms: for each position one per candidate and one for a draw, and the last one for the token after the whole
    draft.
    """
    start = 0
    for index, (token, draft, others) in enumerate(zip(draft_tokens, draft_probs, siblings, strict=True)):
        end = start + len(others) + 2
        found = judge(target(index), draft, [token, *others], uniforms[start:end])
        if found != token:
            return index, found
        start = end
    return len(draft_tokens), target(len(draft_tokens)).draw(float(uniforms[start]))


class Siblings:
    """Of one request. Their number at a position does not depend on anything that is drawn there.

    others: by position, the candidates in addition to the draft token.
    """

    def __init__(self, verification: str) -> None:
        """verification: one of `SIBLING_RULES`."""
        self._rule = SIBLING_RULES[verification]
        self._most, self._never = 0, frozenset[int]()
        self._count = 0
        self._tokens: list[int] = []
        self.others: list[list[int]] = []

    def allow(self, most: int, never: Collection[int]) -> None:
        """most: additional candidates per round. never: tokens after which no further token is needed."""
        self._most, self._never = most, frozenset(never)

    def begin(self, count: int) -> None:
        """Begin a round of up to `count` draft tokens, over whose positions the candidates are spread evenly."""
        self._count, self._tokens, self.others = count, [], []

    def add(self, draft: Distribution, token: int, random: Random) -> None:
        """`token` was drawn from `draft` as the next draft token."""
        place, count = len(self._tokens), max(1, self._count)
        most = self._most // count + (place < self._most % count)
        self._tokens.append(token)
        self.others.append(self._rule.draw(draft, token, random(most)) if most else [])

    def add_certain(self, token: int) -> None:
        """The next draft token was not drawn, so there are no additional candidates."""
        self._tokens.append(token)
        self.others.append([])

    def take(self, rows: int, room: int) -> list[Leaf]:
        """A row for each candidate that is not the draft token of its position, at most `room`, from the front on."""
        leaves = [
            Leaf(place, token)
            for place, (drafted, others) in enumerate(zip(self._tokens, self.others, strict=True))
            for token in dict.fromkeys(others)
            if token != drafted and token not in self._never
        ]
        return leaves[: max(0, room)]

    def verify(
        self,
        target: Callable[[int], Distribution],
        draft_probs: Sequence[Distribution],
        draft_tokens: Sequence[int],
        random: Random,
    ) -> tuple[int, int]:
        """Judge the round's draft, whose candidates are then forgotten; without a draft, draw from the target."""
        others, self._tokens, self.others = self.others[: len(draft_tokens)], [], []
        uniforms = random(sum(map(len, others)) + 2 * len(others) + 1)
        return verify_siblings(self._rule.judge, target, draft_probs, draft_tokens, others, uniforms)
