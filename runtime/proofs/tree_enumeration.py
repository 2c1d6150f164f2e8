"""L0 of leaves: the exact distribution of a round whose verify pass holds leaves.

`SamplingRule.accept_tree` itself is enumerated, on rows that are logarithms of small models' distributions.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from ..sampling.acceptance import VERIFY
from ..sampling.distribution import Probabilities
from ..sampling.leaves import Leaf
from ..sampling.parameters import SamplingParameters, Verification
from ..sampling.rules import SamplingRule
from .enumeration import Chain, Enumeration, Exactness, cases, shares

# The leaves of a draft; they may depend on the drawn tokens, since nothing judges them.
Choose = Callable[[tuple[int, ...], int], list[Leaf]]
# draft tokens, uniforms [k + 2] -> (num_accepted, the tokens that follow)
TreeRun = Callable[[tuple[int, ...], Sequence[float]], tuple[int, list[int]]]


class Given:
    """Noise that is given."""

    def __init__(self) -> None:
        self.uniforms: list[float] = []

    def random(self, size: int) -> Probabilities:
        taken, self.uniforms = self.uniforms[:size], self.uniforms[size:]
        return np.array(taken)


def all_others(draft_tokens: tuple[int, ...], vocab: int) -> list[Leaf]:
    """Every token that was not drafted, at every position."""
    return [Leaf(i, token) for i, drafted in enumerate(draft_tokens) for token in range(vocab) if token != drafted]


def by_what_was_drawn(draft_tokens: tuple[int, ...], vocab: int) -> list[Leaf]:
    """One leaf or none, chosen by the whole draft, as a budget may."""
    total = sum(draft_tokens) + len(draft_tokens)
    place = total % len(draft_tokens)
    return [Leaf(place, (draft_tokens[place] + 1 + total % 2) % vocab)] if total % 4 else []


# (vocabulary, k, leaves)
CASES: tuple[tuple[int, int, Choose], ...] = ((3, 1, all_others), (4, 1, by_what_was_drawn), (3, 2, all_others))


def tree_run(
    verification: Verification, target: Chain, draft: Chain, choose: Choose, behind: Chain | None = None
) -> TreeRun:
    """A round by the rule that sessions use. behind: the model whose rows the leaves have, if not the true one."""

    def run(draft_tokens: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, list[int]]:
        drawn, judged = Given(), Given()
        parameters = SamplingParameters(temperature=1.0, verification=verification)
        rule = SamplingRule(parameters, target.vocab, noise=(drawn, judged))
        for index, token in enumerate(draft_tokens):
            probs = draft.after(draft_tokens[:index])
            drawn.uniforms = [float(probs[:token].sum() + 0.5 * probs[token])]
            found = rule.propose(as_logits(probs))
            assert found == token
        leaves = choose(draft_tokens, target.vocab)
        rows = [target.after(draft_tokens[:i]) for i in range(len(draft_tokens) + 1)]
        rows += [(behind or target).after((*draft_tokens[: leaf.place], leaf.token)) for leaf in leaves]
        judged.uniforms = list(uniforms)
        return rule.accept_tree(np.stack([as_logits(row) for row in rows]), draft_tokens, leaves)

    return run


def as_logits(probs: Probabilities) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The row of a model with the distribution `probs`, not rounded to float32, so that only the rule's arithmetic is
    tested.
    """
    with np.errstate(divide="ignore"):
        logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = np.log(probs)
    return logits


def enumerate_tree(run: TreeRun, target: Chain, draft: Chain, k: int) -> Enumeration:
    """The output of one round with k draft tokens and leaves."""
    rng = np.random.default_rng(k)
    joint: dict[tuple[int, ...], float] = defaultdict(float)
    expected = 0.0

    def first(draft_tokens: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, int]:
        count, following = run(draft_tokens, [*uniforms, 0.5])
        return count, following[0]

    def add(head: tuple[int, ...], probability: float) -> None:
        nonlocal expected
        expected += probability * len(head)
        for tail in itertools.product(range(target.vocab), repeat=k + 1 - len(head)):
            joint[head + tail] += probability * target.probability(head + tail, given=len(head))

    for draft_tokens in itertools.product(range(draft.vocab), repeat=k):
        drafted = draft.probability(draft_tokens)
        if drafted == 0.0:
            continue
        for count, token, probability, uniforms in cases(first, draft_tokens, target.vocab, rng):
            head = (*draft_tokens[:count], token)

            def behind(uniform: float, tokens: tuple[int, ...] = draft_tokens, given: list[float] = uniforms) -> int:
                return run(tokens, [*given, uniform])[1][-1]

            if len(run(draft_tokens, [*uniforms, 0.5])[1]) == 1:
                add(head, drafted * probability)
                continue
            for last, share in enumerate(shares(behind, target.vocab)):
                if share:
                    add((*head, last), drafted * probability * share)
    return Enumeration(dict(joint), expected)


def check_leaves() -> list[Exactness]:
    """Enumerate leaves with every rule for the draft itself."""
    found = []
    for verification in VERIFY:
        errors, lengths = [], []
        for vocab, k, choose in CASES:
            target, draft = Chain(vocab, 0), Chain(vocab, 100)
            result = enumerate_tree(tree_run(verification, target, draft, choose), target, draft, k)
            errors.append(result.error(target))
            lengths.append(result.length)
        found.append(Exactness(f"leaves behind {verification}", len(errors), max(errors), sum(lengths) / len(lengths)))
    return found
