"""L0 of rules that judge several candidates per position: the exact distribution of a round, drawn and judged.

`SamplingRule` itself is enumerated with its `Siblings`, on rows that are logarithms of small models' distributions: the
draws of the candidates, the rule at each position, and the token after a candidate that has a row.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..sampling.parameters import SIBLINGS, SamplingParameters, Verification
from ..sampling.rules import SamplingRule
from .enumeration import UNIFORM_STEPS, Chain, Enumeration, Exactness, measure, shares
from .tree_enumeration import Given, as_logits

# (vocabulary, k, additional candidates)
SHAPES = ((3, 1, 1), (2, 2, 1))
LAST = (UNIFORM_STEPS - 1) / UNIFORM_STEPS  # accepts only what must be accepted
Tokens = tuple[int, ...]
PARAMETERS = {name: SamplingParameters(temperature=1.0, verification=name) for name in SIBLINGS}


@dataclass
class Comb:
    """The rounds of a pair under a rule. most: additional candidates. behind: the model whose rows the candidates have,
    if not the true one.
    """

    verification: Verification
    target: Chain
    draft: Chain
    k: int
    most: int
    behind: Chain | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def candidates(self, draws: Sequence[float]) -> list[Tokens]:
        """The candidates of each position, the draft token first, by uniforms for every possible one."""
        return self._propose(draws)[1]

    def run(self, draws: Sequence[float], uniforms: Sequence[float]) -> tuple[int, list[int]]:
        """(num_accepted, the tokens that follow)."""
        rule, candidates, judged = self._propose(draws)
        assert rule.siblings is not None
        draft_tokens = tuple(tokens[0] for tokens in candidates)
        leaves = rule.siblings.take(1, self.most)
        rows = [self.target.after(draft_tokens[:i]) for i in range(self.k + 1)]
        rows += [(self.behind or self.target).after((*draft_tokens[: leaf.place], leaf.token)) for leaf in leaves]
        judged.uniforms = list(uniforms)
        return rule.accept_tree(np.stack([as_logits(row) for row in rows]), draft_tokens, leaves)

    def _propose(self, draws: Sequence[float]) -> tuple[SamplingRule, list[Tokens], Given]:
        drawn, judged = Given(), Given()
        rule = SamplingRule(PARAMETERS[self.verification], self.target.vocab, noise=(drawn, judged))
        siblings = rule.siblings
        assert siblings is not None
        siblings.allow(self.most, ())
        siblings.begin(self.k)
        drawn.uniforms = list(draws)
        draft_tokens: Tokens = ()
        for _ in range(self.k):
            token = rule.propose(as_logits(self.draft.after(draft_tokens)))
            assert token is not None
            draft_tokens += (token,)
        return rule, [(token, *others) for token, others in zip(draft_tokens, siblings.others, strict=True)], judged

    def within(self, low: float, high: float) -> float:
        """A uniform between these, drawn anew for every case, so that reused noise comes out wrong."""
        between = low + (high - low) * (int(self.rng.integers(1, 1000)) / 1000)
        return float(np.floor(between * UNIFORM_STEPS) / UNIFORM_STEPS)

    def split(self, token: Callable[[float], int]) -> Iterator[tuple[int, float, float]]:
        """Every token of a draw: `(token, its probability, a uniform that gives it)`."""
        below = 0.0
        for found, share in enumerate(shares(token, self.target.vocab)):
            if share:
                yield found, share, self.within(below, below + share)
            below += share


def _drawn(comb: Comb, draws: Sequence[float] = ()) -> Iterator[tuple[list[float], float]]:
    """Every outcome of drawing the candidates: `(uniforms, probability)`."""
    fans = [1 + comb.most // comb.k + (place < comb.most % comb.k) for place in range(comb.k)]
    where = [(place, index) for place, fan in enumerate(fans) for index in range(fan)]
    if len(draws) == len(where):
        yield list(draws), 1.0
        return
    place, index = where[len(draws)]
    later = [0.5] * (len(where) - len(draws) - 1)

    def candidate(uniform: float) -> int | None:
        found = comb.candidates([*draws, uniform, *later])[place]
        return found[index] if index < len(found) else None

    if candidate(0.5) is None:  # no token is left to draw
        yield from _drawn(comb, [*draws, 0.5])
        return
    for _, share, uniform in comb.split(lambda uniform: candidate(uniform) or 0):
        for given, probability in _drawn(comb, [*draws, uniform]):
            yield given, share * probability


def _judged(comb: Comb, draws: Sequence[float]) -> Iterator[tuple[Tokens, float]]:
    """Every output of a round whose candidates came out by `draws`: `(tokens, probability)`."""
    candidates = comb.candidates(draws)
    draft_tokens = tuple(tokens[0] for tokens in candidates)
    size = sum(len(tokens) + 1 for tokens in candidates) + 2

    def output(uniforms: Sequence[float]) -> Tokens:
        count, following = comb.run(draws, [*uniforms, *([0.5] * (size - len(uniforms)))])
        return (*draft_tokens[:count], *following)

    def behind_row(head: Tokens, token: int, given: list[float]) -> Iterator[tuple[Tokens, float]]:
        for last, share, _ in comb.split(lambda uniform: output([*given, uniform])[-1]):
            yield (*head, token, last), share

    def behind(place: int, head: list[float]) -> Iterator[tuple[Tokens, float]]:
        """head: uniforms that accept the draft up to `place`."""
        if place == comb.k:
            for token, share, _ in comb.split(lambda uniform: output([*head, uniform])[place]):
                yield (*draft_tokens, token), share
            return
        for token, probability, block in _place(comb, candidates[place], lambda given: output([*head, *given])[place]):
            given = [*head, *block]
            if token == draft_tokens[place]:
                rest: Iterator[tuple[Tokens, float]] = behind(place + 1, given)
            elif len(output(given)) == place + 2:  # it has a row
                padded = [*given, *([0.5] * (size - 1 - len(given)))]
                rest = behind_row(draft_tokens[:place], token, padded)
            else:
                rest = iter([((*draft_tokens[:place], token), 1.0)])
            for tokens, share in rest:
                yield tokens, probability * share

    return behind(0, [])


def _place(
    comb: Comb, candidates: Tokens, token: Callable[[Sequence[float]], int]
) -> Iterator[tuple[int, float, list[float]]]:
    """Every outcome of judging a position: `(the token there, probability, uniforms)`.

    A candidate is seen to be accepted if the draw after its rejection would give another token.
    """
    count, left = len(candidates), 1.0
    sides: list[float] = []
    drawn = list(comb.split(lambda uniform: token([*([LAST] * count), uniform])))
    for index, candidate in enumerate(candidates):
        other = next((uniform for found, _, uniform in drawn if found != candidate), 0.5)
        before, after = [LAST] * index, [LAST] * (count - index - 1)

        def accepts(
            uniform: float,
            head: list[float] = before,
            tail: list[float] = after,
            end: float = other,
            wanted: int = candidate,
        ) -> bool:
            return token([*head, uniform, *tail, end]) == wanted

        threshold = measure(accepts)
        if threshold and left:
            head = [comb.within(side, 1.0) for side in sides]
            tail = [comb.within(0.0, 1.0) for _ in range(count - index)]
            yield candidate, left * threshold, [*head, comb.within(0.0, threshold), *tail]
        sides.append(threshold)
        left *= 1.0 - threshold
    if left:
        for found, share, uniform in drawn:
            yield found, left * share, [*(comb.within(side, 1.0) for side in sides), uniform]


def enumerate_comb(comb: Comb) -> Enumeration:
    """The output of one round."""
    joint: dict[Tokens, float] = defaultdict(float)
    expected = 0.0
    for draws, drawn in _drawn(comb):
        for head, judged in _judged(comb, draws):
            expected += drawn * judged * len(head)
            for tail in itertools.product(range(comb.target.vocab), repeat=comb.k + 1 - len(head)):
                continued = comb.target.probability(head + tail, given=len(head))
                joint[head + tail] += drawn * judged * continued
    return Enumeration(dict(joint), expected)


def check_siblings() -> list[Exactness]:
    """Enumerate every rule that judges several candidates per position."""
    found = []
    for verification in SIBLINGS:
        errors, lengths = [], []
        for vocab, k, most in SHAPES:
            target = Chain(vocab, 0)
            result = enumerate_comb(Comb(verification, target, Chain(vocab, 100), k, most))
            errors.append(result.error(target))
            lengths.append(result.length)
        found.append(Exactness(verification, len(errors), max(errors), sum(lengths) / len(lengths)))
    return found
