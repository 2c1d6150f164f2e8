"""Candidates beside the tokens of a draft, drawn from the same rows and judged with them.

The tree is a comb: in each place the draft goes on behind its first candidate. The others end the round where one of
them is accepted; those that have a row in the verify pass give one token more.
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
    """As of `acceptance.Verify`, with `siblings[i]` beside draft_tokens[i], both from draft_probs[i].

    uniforms: for each place one a candidate and one for a draw, and the last one for the token behind the whole draft.
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
    """Of one request. How many there are in a place depends on nothing that is drawn there.

    others: by place, the candidates beside the draft token.
    """

    def __init__(self, verification: str) -> None:
        """verification: one of `SIBLING_RULES`."""
        self._rule = SIBLING_RULES[verification]
        self._most, self._never = 0, frozenset[int]()
        self._taken: Callable[[int], None] = lambda count: None
        self._count = 0
        self._tokens: list[int] = []
        self.others: list[list[int]] = []

    def allow(self, most: int, never: Collection[int], taken: Callable[[int], None] | None = None) -> None:
        """most: candidates a round beside the draft. never: tokens behind which nothing is asked for. taken: told of
        each round's rows.
        """
        self._most, self._never, self._taken = most, frozenset(never), taken or self._taken

    def begin(self, count: int) -> None:
        """A round of up to `count` draft tokens, among whose places the candidates are shared out evenly."""
        self._count, self._tokens, self.others = count, [], []

    def add(self, draft: Distribution, token: int, random: Random) -> None:
        """`token` was drawn from `draft` as the next draft token."""
        place, count = len(self._tokens), max(1, self._count)
        most = self._most // count + (place < self._most % count)
        self._tokens.append(token)
        self.others.append(self._rule.draw(draft, token, random(most)) if most else [])

    def add_certain(self, token: int) -> None:
        """The next draft token was not drawn, so there is nothing beside it."""
        self._tokens.append(token)
        self.others.append([])

    def take(self, room: int) -> list[Leaf]:
        """A row for each candidate that is not the draft token of its place, at most `room`, from the front on."""
        leaves = [
            Leaf(place, token)
            for place, (drafted, others) in enumerate(zip(self._tokens, self.others, strict=True))
            for token in dict.fromkeys(others)
            if token != drafted and token not in self._never
        ]
        leaves = leaves[: max(0, room)]
        self._taken(len(leaves))
        return leaves

    def verify(
        self,
        target: Callable[[int], Distribution],
        draft_probs: Sequence[Distribution],
        draft_tokens: Sequence[int],
        random: Random,
    ) -> tuple[int, int]:
        """Of the round's draft, whose candidates are then forgotten; without a draft, a draw from the target."""
        others, self._tokens, self.others = self.others[: len(draft_tokens)], [], []
        uniforms = random(sum(map(len, others)) + 2 * len(others) + 1)
        return verify_siblings(self._rule.judge, target, draft_probs, draft_tokens, others, uniforms)
