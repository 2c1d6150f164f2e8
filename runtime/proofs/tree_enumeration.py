"""L0 of rounds whose verify pass is a tree: leaves, and several candidates per position.

`SamplingRule` itself is enumerated, on rows that are logarithms of small models' distributions: what is drawn, how it
is judged, and the token after a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from ..sampling.acceptance import VERIFY
from ..sampling.distribution import Probabilities, Row
from ..sampling.leaves import Leaf
from ..sampling.parameters import SamplingParameters, Verification
from ..sampling.rules import SamplingRule
from .enumeration import Chain, Enumeration, Exactness, Tokens, integrate

# The leaves of a draft; they may depend on the drawn tokens, since nothing judges them.
Choose = Callable[[Tokens, int], list[Leaf]]


def all_others(draft_tokens: Tokens, vocab: int) -> list[Leaf]:
    """Every token that was not drafted, at every position."""
    return [Leaf(i, token) for i, drafted in enumerate(draft_tokens) for token in range(vocab) if token != drafted]


def by_draft(draft_tokens: Tokens, vocab: int) -> list[Leaf]:
    """One leaf or none, chosen by the whole draft."""
    total = sum(draft_tokens) + len(draft_tokens)
    place = total % len(draft_tokens)
    return [Leaf(place, (draft_tokens[place] + 1 + total % 2) % vocab)] if total % 4 else []


# (vocabulary, k, leaves), and (vocabulary, k, additional candidates)
LEAVES: tuple[tuple[int, int, Choose], ...] = ((3, 1, all_others), (4, 1, by_draft), (3, 2, all_others))
CANDIDATES = ((3, 1, 1), (2, 2, 1))
PARAMETERS = {name: SamplingParameters(temperature=1.0, verification=name) for name in get_args(Verification)}


class FixedNoise:
    """Noise that was decided."""

    def __init__(self, uniforms: Sequence[float] = ()) -> None:
        self.uniforms = list(uniforms)

    def random(self, size: int) -> Probabilities:
        taken, self.uniforms = self.uniforms[:size], self.uniforms[size:]
        return np.array(taken)


def as_logits(probs: Probabilities) -> Row:
    """The row of a model with the distribution `probs`, not rounded to float32, so that only the rule's arithmetic is
    tested.
    """
    with np.errstate(divide="ignore"):
        logits: Row = np.log(probs)
    return logits


@dataclass(frozen=True)
class TreeRound:
    """A round by the rule that sessions use.

    leaves: how they are chosen, or the number of additional candidates, for a verification that draws some. leaf_rows:
    the model whose rows the leaves have, if not the target.
    """

    verification: Verification
    target: Chain
    draft: Chain
    k: int
    leaves: Choose | int
    leaf_rows: Chain | None = None

    def play(self, uniforms: Sequence[float]) -> tuple[Tokens, int, Tokens]:
        """(everything drawn, num_accepted, the tokens that follow); the draft's tokens are drawn first."""
        draws = self.k + (self.leaves if isinstance(self.leaves, int) else 0)
        noise = FixedNoise(uniforms[:draws]), FixedNoise(uniforms[draws:])
        rule = SamplingRule(PARAMETERS[self.verification], self.target.vocab, noise=noise)
        if isinstance(self.leaves, int):
            assert rule.siblings is not None
            rule.siblings.allow(self.leaves, ())
            rule.siblings.begin(self.k)
        draft_tokens: Tokens = ()
        for _ in range(self.k):
            token = rule.propose(as_logits(self.draft.after(draft_tokens)))
            assert token is not None
            draft_tokens += (token,)
        others = [] if rule.siblings is None else [token for drawn in rule.siblings.others for token in drawn]
        if isinstance(self.leaves, int):
            assert rule.siblings is not None
            leaves = rule.siblings.take(self.leaves)
        else:
            leaves = self.leaves(draft_tokens, self.target.vocab)
        rows = [self.target.after(draft_tokens[:i]) for i in range(self.k + 1)]
        rows += [(self.leaf_rows or self.target).after((*draft_tokens[: leaf.place], leaf.token)) for leaf in leaves]
        count, following = rule.accept_tree(np.stack(list(map(as_logits, rows))), draft_tokens, leaves)
        return (*draft_tokens, *others), count, tuple(following)

    def enumerate(self) -> Enumeration:
        size = 2 * self.k + 2
        if isinstance(self.leaves, int):  # a uniform to draw each, one to judge it, and one to draw at each position
            size += 2 * self.leaves + self.k
        rounds = (((*drawn[:count], *following), p) for (drawn, count, following), p in integrate(self.play, size))
        return Enumeration.of(rounds, self.target, self.k)


def check_trees() -> list[Exactness]:
    """Enumerate leaves with every rule of chains, and the rule that judges several candidates per position."""

    def check(name: str, verification: Verification, cases: Sequence[tuple[int, int, Choose | int]]) -> Exactness:
        rounds = [TreeRound(verification, Chain(n, 0), Chain(n, 100), k, leaves) for n, k, leaves in cases]
        return Exactness.of(name, [(one.enumerate(), one.target) for one in rounds])

    return [
        *(check(f"leaves after {verification}", verification, LEAVES) for verification in VERIFY),
        check("spectr", "spectr", CANDIDATES),
    ]
