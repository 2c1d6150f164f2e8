"""L0 of docs/losslessness.md: the exact distribution of a round's output, by enumeration.

Nothing is sampled. A round is a black box that turns uniforms into tokens. Each uniform is split where the result
changes, found by bisection on the round itself, so a rule's comparisons and its residual are tested too. The models are
small and random, and their distributions depend on the whole context.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from ..sampling.acceptance import VERIFY, Verify
from ..sampling.distribution import Distribution, Probabilities

UNIFORM_STEPS = 2**53  # uniforms are multiples of 2**-53
# Float64 rounding error over a few hundred additions.
PROBABILITY_TOLERANCE = 1e-12
SIZES = ((3, 1), (4, 1), (3, 2), (4, 2), (3, 3))  # (vocabulary, k)

Tokens = tuple[int, ...]
Result = TypeVar("Result")
# draft tokens, uniforms [k + 1] -> (num_accepted, next_token)
Run = Callable[[Tokens, Sequence[float]], tuple[int, int]]


@dataclass
class Chain:
    """A distribution of the next token for every context; some have zeros, some are one-hot."""

    vocab: int
    seed: int
    known: dict[Tokens, Probabilities] = field(default_factory=dict)

    def after(self, context: Tokens) -> Probabilities:
        """`[vocab] float64`."""
        if context not in self.known:
            rng = np.random.default_rng([self.seed, *context, len(context)])
            probs = rng.dirichlet(np.full(self.vocab, 0.8))
            kind = rng.random()
            if kind < 0.25:
                probs[rng.integers(self.vocab)] = 0.0
            elif kind < 0.35:
                probs = np.eye(self.vocab)[rng.integers(self.vocab)]
            self.known[context] = probs / probs.sum()
        return self.known[context]

    def probability(self, tokens: Tokens, start: int = 0) -> float:
        """The probability of `tokens[start:]` after `tokens[:start]`."""
        return float(np.prod([self.after(tokens[:i])[tokens[i]] for i in range(start, len(tokens))]))


@dataclass(frozen=True)
class Enumeration:
    """joint: probability of the first k + 1 tokens, where the target continues what a round leaves open. length:
    expected tokens per round.
    """

    joint: dict[Tokens, float]
    length: float

    @classmethod
    def of(cls, rounds: Iterable[tuple[Tokens, float]], target: Chain, k: int) -> Enumeration:
        """rounds: every output of a round with k draft tokens, with its probability."""
        joint: dict[Tokens, float] = defaultdict(float)
        length = 0.0
        for head, probability in rounds:
            length += probability * len(head)
            for tail in itertools.product(range(target.vocab), repeat=k + 1 - len(head)):
                joint[head + tail] += probability * target.probability(head + tail, len(head))
        return cls(dict(joint), length)

    def error(self, target: Chain) -> float:
        """Largest difference from the target: of a sequence's probability, and of a token's given its prefix.

        A sequence that the target excludes is an error of 1, however rarely it occurs.
        """
        worst, size = 0.0, len(next(iter(self.joint)))
        mass: dict[Tokens, float] = defaultdict(float)
        for tokens, probability in self.joint.items():
            for length in range(size + 1):
                mass[tokens[:length]] += probability
        for tokens in itertools.product(range(target.vocab), repeat=size):
            ours, theirs = self.joint.get(tokens, 0.0), target.probability(tokens)
            worst = max(worst, abs(ours - theirs) if theirs else float(ours > 0.0))
            for length in range(size):
                before = mass[tokens[:length]]
                # A prefix with hardly any mass would magnify rounding errors.
                if before > 1e-3:
                    share = mass[tokens[: length + 1]] / before
                    worst = max(worst, abs(share - float(target.after(tokens[:length])[tokens[length]])))
        return worst


def integrate(
    play: Callable[[Sequence[float]], Result], size: int, steps: int = UNIFORM_STEPS
) -> Iterator[tuple[Result, float]]:
    """Every result of `play`, which reads `size` uniforms, with the probability of those that lead to it.

    A uniform is compared with a threshold, or a token is drawn by it, so its effect changes at a few points only. An
    effect shows in the result for some values of the later uniforms: all at 1, where nothing is accepted that need not
    be, or one of them at 0. What follows is found from a uniform anywhere in the piece, drawn anew for every case, so
    that a token drawn from used noise has the wrong distribution.
    """
    rng, last = np.random.default_rng(size), (steps - 1) / steps

    def pieces(head: Sequence[float]) -> list[int]:
        """The first step of each piece of the uniform after `head`, and `steps`."""
        edges, later = [0, steps], size - len(head) - 1
        for zero in range(later, -1, -1):
            tail = [0.0 if place == zero else last for place in range(later)]

            def at(step: int, tail: Sequence[float] = tuple(tail)) -> Result:
                return play([*head, step / steps, *tail])

            for low, high in itertools.pairwise(tuple(edges)):
                edges += _changes(at, low, high - 1)
            edges.sort()
        return edges

    def branches(head: Sequence[float]) -> Iterator[tuple[Result, float]]:
        if len(head) == size:
            yield play(head), 1.0
            return
        for low, high in itertools.pairwise(pieces(head)):
            within = low + (high - low) * int(rng.integers(1, 1000)) // 1000
            for result, probability in branches([*head, within / steps]):
                yield result, probability * (high - low) / steps

    return branches([])


def _changes(at: Callable[[int], object], low: int, high: int) -> list[int]:
    """Where the result changes between two steps, if it is the same wherever it is the same at both ends."""

    def between(low: int, first: object, high: int, last: object) -> list[int]:
        if first == last:
            return []
        if high - low == 1:
            return [high]
        middle = (low + high) // 2
        there = at(middle)
        return between(low, first, middle, there) + between(middle, there, high, last)

    return between(low, at(low), high, at(high))


def enumerate_rounds(run: Run, target: Chain, draft: Chain, k: int, steps: int = UNIFORM_STEPS) -> Enumeration:
    """The output of one round with k draft tokens, for uniforms that are multiples of 1 / steps."""

    def rounds() -> Iterator[tuple[Tokens, float]]:
        for draft_tokens in itertools.product(range(draft.vocab), repeat=k):
            if drafted := draft.probability(draft_tokens):
                for (count, token), probability in integrate(partial(run, draft_tokens), k + 1, steps):
                    yield (*draft_tokens[:count], token), drafted * probability

    return Enumeration.of(rounds(), target, k)


def enumerate_rule(verify: Verify, target: Chain, draft: Chain, k: int, judged_by: Chain | None = None) -> Enumeration:
    """The same for a verification rule. judged_by: the model that the rule takes the draft for, if not the true one."""

    def run(draft_tokens: Tokens, uniforms: Sequence[float]) -> tuple[int, int]:
        draft_probs = [Distribution((judged_by or draft).after(draft_tokens[:i])) for i in range(k)]
        return verify(
            lambda i: Distribution(target.after(draft_tokens[:i])), draft_probs, draft_tokens, np.array(uniforms)
        )

    return enumerate_rounds(run, target, draft, k)


@dataclass(frozen=True)
class Exactness:
    """L0 of one rule: the largest error of a probability over all models, and the mean tokens per round."""

    rule: str
    models: int
    error: float
    length: float

    @property
    def passed(self) -> bool:
        return self.error <= PROBABILITY_TOLERANCE

    @classmethod
    def of(cls, rule: str, results: Sequence[tuple[Enumeration, Chain]]) -> Exactness:
        """results: with their targets."""
        lengths = [result.length for result, _ in results]
        error = max(result.error(target) for result, target in results)
        return cls(rule, len(results), error, sum(lengths) / len(lengths))


def check_rules() -> list[Exactness]:
    pairs = [(Chain(vocab, 0), Chain(vocab, 100), k) for vocab, k in SIZES]
    return [
        Exactness.of(rule, [(enumerate_rule(verify, target, draft, k), target) for target, draft, k in pairs])
        for rule, verify in VERIFY.items()
    ]
