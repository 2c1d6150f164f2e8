"""L0 of rounds whose verify pass is a tree: `spectr`, which judges candidates in addition to each draft token.

`SamplingRule` itself is enumerated, on rows that are logarithms of small models' distributions: what is drawn, how it
is judged, and the token after a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..sampling.distribution import Probabilities, Row
from ..sampling.parameters import SamplingParameters
from ..sampling.rules import SamplingRule
from .enumeration import Chain, Enumeration, Exactness, Tokens, integrate

SIZES = ((3, 1, 1), (2, 2, 1))  # (vocabulary, k, candidates)
PARAMETERS = SamplingParameters(temperature=1.0, verification="spectr")


class FixedNoise:
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
    """A round by the rule that sessions use."""

    target: Chain
    draft: Chain
    k: int
    num_candidates: int

    def play(self, uniforms: Sequence[float]) -> tuple[Tokens, int, Tokens]:
        """(everything drawn, num_accepted, the tokens that follow); the draft's tokens are drawn first."""
        draws = self.k + self.num_candidates
        noise = FixedNoise(uniforms[:draws]), FixedNoise(uniforms[draws:])
        rule = SamplingRule(PARAMETERS, self.target.vocab, noise=noise)
        assert rule.candidates is not None
        rule.candidates.allow(self.num_candidates, ())
        rule.candidates.begin(self.k)
        draft_tokens: Tokens = ()
        for _ in range(self.k):
            token = rule.propose(as_logits(self.draft.after(draft_tokens)))
            assert token is not None
            draft_tokens += (token,)
        others = [token for drawn in rule.candidates.others for token in drawn]
        candidates = rule.candidates.take(self.num_candidates)
        rows = [self.target.after(draft_tokens[:i]) for i in range(self.k + 1)]
        rows += [self.target.after((*draft_tokens[: one.place], one.token)) for one in candidates]
        count, following = rule.accept_tree(np.stack(list(map(as_logits, rows))), draft_tokens, candidates)
        return (*draft_tokens, *others), count, tuple(following)

    def enumerate(self) -> Enumeration:
        # A uniform to draw each token and one to judge it, one to draw at each position, and one behind a candidate.
        size = 2 * (self.k + self.num_candidates) + self.k + 2
        rounds = (((*drawn[:count], *following), p) for (drawn, count, following), p in integrate(self.play, size))
        return Enumeration.of(rounds, self.target, self.k)


def check_trees() -> Exactness:
    rounds = [TreeRound(Chain(n, 0), Chain(n, 100), k, candidates) for n, k, candidates in SIZES]
    return Exactness.of("spectr", [(one.enumerate(), one.target) for one in rounds])
