"""L0 of docs/losslessness.md: the distribution of a verification rule's output, exactly, by enumeration.

Nothing is sampled: every draft is enumerated, and the rule's uniforms are integrated out by bisection on the rule
itself, as a black box, so its comparisons and its residual are tested. The models are small and random, and their
distributions depend on the whole context.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..sampling.acceptance import VERIFY, Verify
from ..sampling.distribution import Distribution, Probabilities

UNIFORM_STEPS = 2**53  # uniforms are multiples of 2**-53
# Float64 rounding error over a few hundred additions.
PROBABILITY_TOLERANCE = 1e-12
SIZES = ((3, 1), (4, 1), (3, 2), (4, 2), (3, 3))  # (vocabulary, k)

# draft tokens, uniforms [k + 1] -> (num_accepted, next_token)
Run = Callable[[tuple[int, ...], Sequence[float]], tuple[int, int]]
Outcome = tuple[int, int, float]


@dataclass
class Chain:
    """A distribution of the next token for every context; some have zeros, some are one-hot."""

    vocab: int
    seed: int
    known: dict[tuple[int, ...], Probabilities] = field(default_factory=dict)

    def after(self, context: tuple[int, ...]) -> Probabilities:
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

    def probability(self, tokens: tuple[int, ...], given: int = 0) -> float:
        """The probability of `tokens[given:]` after `tokens[:given]`."""
        return float(np.prod([self.after(tokens[:i])[tokens[i]] for i in range(given, len(tokens))]))


@dataclass(frozen=True)
class Enumeration:
    """joint: probability of the first k + 1 tokens, where the target continues what a round leaves open. length:
    expected tokens per round.
    """

    joint: dict[tuple[int, ...], float]
    length: float

    def error(self, target: Chain) -> float:
        """Largest difference from the target: of a sequence's probability, and of a token's given its prefix.

        A sequence that the target excludes is an error of 1, however rarely it occurs.
        """
        worst = 0.0
        size = len(next(iter(self.joint)))
        mass: dict[tuple[int, ...], float] = defaultdict(float)
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
                    worst = max(
                        worst,
                        abs(mass[tokens[: length + 1]] / before - float(target.after(tokens[:length])[tokens[length]])),
                    )
        return worst


def measure(holds: Callable[[float], bool], steps: int = UNIFORM_STEPS) -> float:
    """The fraction of uniforms for which `holds` is true, if it is true up to some uniform and false from there on."""
    if holds((steps - 1) / steps):
        return 1.0
    low, high = 0, steps - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle / steps) else (low, middle)
    return low / steps


def shares(token: Callable[[float], int], vocab: int, steps: int = UNIFORM_STEPS) -> list[float]:
    """The fraction of uniforms for which `token`, a non-decreasing function, is each of the ids."""

    def up_to(last: int) -> float:
        return measure(lambda uniform: token(uniform) <= last, steps)

    below = [0.0, *map(up_to, range(vocab))]
    return [after - before for before, after in itertools.pairwise(below)]


def outcomes(
    run: Run, draft_tokens: tuple[int, ...], vocab: int, rng: np.random.Generator, steps: int = UNIFORM_STEPS
) -> Iterator[Outcome]:
    """Every `(num_accepted, next_token, probability)` of one draft, uniforms integrated out."""
    return (case[:3] for case in cases(run, draft_tokens, vocab, rng, steps))


def cases(
    run: Run, draft_tokens: tuple[int, ...], vocab: int, rng: np.random.Generator, steps: int = UNIFORM_STEPS
) -> Iterator[tuple[int, int, float, list[float]]]:
    """The same, each with uniforms that produce it.

    Each deciding uniform matters only by the side of its threshold on which it lies. To find threshold i, the earlier
    uniforms accept whatever they can and the later ones accept nothing that they need not; this suits both a rule that
    reads from the left and one that looks for the longest accepted draft. The uniform's position on its side is drawn
    anew for every case, so a token that is drawn from used noise comes out wrong.
    """
    k, last = len(draft_tokens), (steps - 1) / steps

    def threshold(index: int) -> float:
        earlier, later = [0.0] * index, [last] * (k - index - 1)
        return measure(lambda uniform: run(draft_tokens, [*earlier, uniform, *later, 0.5])[0] > index, steps)

    thresholds = [threshold(index) for index in range(k)]
    for accepts in itertools.product((True, False), repeat=k):
        sides = [(0.0, t) if accept else (t, 1.0) for t, accept in zip(thresholds, accepts, strict=True)]
        probability = float(np.prod([high - low for low, high in sides]))
        if probability == 0.0:
            continue
        deciding = [low + (high - low) * (int(rng.integers(1, 1000)) / 1000) for low, high in sides]
        deciding = [np.floor(uniform * steps) / steps for uniform in deciding]
        count = run(draft_tokens, [*deciding, 0.5])[0]

        def follower(uniform: float, head: Sequence[float] = tuple(deciding)) -> int:
            return run(draft_tokens, [*head, uniform])[1]

        below = 0.0
        for token, share in enumerate(shares(follower, vocab, steps)):
            if share:
                within = np.floor((below + share * (int(rng.integers(1, 1000)) / 1000)) * steps) / steps
                yield count, token, probability * share, [*deciding, float(within)]
            below += share


def enumerate_rule(verify: Verify, target: Chain, draft: Chain, k: int, judged_by: Chain | None = None) -> Enumeration:
    """The output of one round of `verify` with k draft tokens.

    judged_by: the distribution that the rule is told the draft was drawn from, if not the true one.
    """
    told = judged_by or draft

    def run(draft_tokens: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, int]:
        draft_probs = [Distribution(told.after(draft_tokens[:i])) for i in range(k)]
        return verify(
            lambda i: Distribution(target.after(draft_tokens[:i])), draft_probs, draft_tokens, np.array(uniforms)
        )

    return enumerate_rounds(run, target, draft, k)


def enumerate_rounds(run: Run, target: Chain, draft: Chain, k: int, steps: int = UNIFORM_STEPS) -> Enumeration:
    """The same for any rule that judges a draft of `target` by uniforms that are multiples of 1 / steps."""
    rng = np.random.default_rng(k)
    joint: dict[tuple[int, ...], float] = defaultdict(float)
    expected = 0.0
    for draft_tokens in itertools.product(range(draft.vocab), repeat=k):
        drafted = draft.probability(draft_tokens)
        if drafted == 0.0:
            continue
        for count, token, probability in outcomes(run, draft_tokens, target.vocab, rng, steps):
            head = (*draft_tokens[:count], token)
            expected += drafted * probability * len(head)
            for tail in itertools.product(range(target.vocab), repeat=k + 1 - len(head)):
                joint[head + tail] += drafted * probability * target.probability(head + tail, given=len(head))
    return Enumeration(dict(joint), expected)


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


def check_rules(seeds: int = 1) -> list[Exactness]:
    """Enumerate every verification rule over `seeds` pairs of models of each size."""
    found = []
    for rule, verify in VERIFY.items():
        errors, lengths = [], []
        for vocab, k in SIZES:
            for seed in range(seeds):
                target, draft = Chain(vocab, seed), Chain(vocab, 100 + seed)
                result = enumerate_rule(verify, target, draft, k)
                errors.append(result.error(target))
                lengths.append(result.length)
        found.append(Exactness(rule, len(errors), max(errors), sum(lengths) / len(lengths)))
    return found
