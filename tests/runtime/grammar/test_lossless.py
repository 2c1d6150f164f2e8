"""L0 under a grammar: rounds of the request's own rule, from logits, enumerated as in docs/losslessness.md.

The definition is written once more, by itself, in `support/bounded.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.drafting.drafters import Drafter
from specexport.runtime.drafting.rounds import RoundPlan, Source
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, Enumeration, enumerate_rounds
from specexport.runtime.sampling.rules import Rule
from support.bounded import Bounded, judged, rule_of, with_a_model
from support.toy_grammar import ToyMatcher

SIZES = ((4, 1), (3, 2), (3, 3))
TRUNCATED = {"top_p": 0.8}
SEEDS = range(3)


class Found:
    """A lookup that finds what it is told."""

    odds: Sequence[float] = (1.0,)
    source: Source = "lookup"

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        return list(self.tokens[:count])


class Certain(Chain):
    """A draft without chance."""

    def __init__(self, vocab: int, tokens: Sequence[int]) -> None:
        super().__init__(vocab, 0)
        self.tokens = tokens

    def after(self, context: tuple[int, ...]) -> np.ndarray:
        return np.eye(self.vocab)[self.tokens[len(context)]]


def without_a_model(
    target: Bounded, k: int, verification: str, propose: Callable[[Rule], list[int]]
) -> tuple[Enumeration, int]:
    """The output of k + 1 tokens where `propose` tells the rule its draft, and how many tokens that are."""
    tokens = propose(rule_of(target, verification))

    def run(drafted: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, int]:
        rule = rule_of(target, verification)
        assert tuple(propose(rule)) == drafted
        return judged(rule, target, drafted, uniforms)

    found = enumerate_rounds(run, target, Certain(target.vocab, tokens), len(tokens))
    return lengthened(found, target, k + 1), len(tokens)


def lengthened(found: Enumeration, target: Bounded, length: int) -> Enumeration:
    joint = found.joint
    while len(next(iter(joint))) < length:
        joint = {
            (*tokens, token): probability * share
            for tokens, probability in joint.items()
            for token, share in enumerate(target.after(tokens))
            if share
        }
    return Enumeration(joint, found.length)


def looked_up(tokens: Sequence[int]) -> Callable[[Rule], list[int]]:
    return lambda rule: Drafter(rule, lookups=[Found(tokens)]).propose([0], RoundPlan(len(tokens))).tokens


def forced(k: int) -> Callable[[Rule], list[int]]:
    def propose(rule: Rule) -> list[int]:
        return Drafter(rule).propose([0], RoundPlan(k, forced=tuple(rule.forced(k)))).tokens

    return propose


def models(vocab: int, seed: int, masked: bool = True) -> tuple[Bounded, Bounded]:
    grammar = ToyMatcher(vocab, seed)
    target = Bounded(vocab, seed, grammar=grammar, options=TRUNCATED)
    return target, Bounded(vocab, 100 + seed, grammar=grammar if masked else None, options=TRUNCATED)


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(("vocab", "k"), SIZES)
@pytest.mark.parametrize("masked", [True, False])
def test_the_output_is_the_bounded_targets_own(verification: str, vocab: int, k: int, masked: bool) -> None:
    """`ToyMatcher` raises where a rule asks for a row behind a token that it forbids."""
    forbidden = 0
    for seed in SEEDS:
        target, draft = models(vocab, seed, masked)
        result = with_a_model(target, draft, k, verification, masked)
        assert sum(result.joint.values()) == pytest.approx(1.0, abs=PROBABILITY_TOLERANCE)
        assert result.error(target) <= PROBABILITY_TOLERANCE
        forbidden += int(~target.grammar.allowed() @ draft.after(()) > 0.0)
    assert (forbidden > 0) == (not masked)


@pytest.mark.parametrize("verification", ["block", "token"])
def test_a_draft_that_is_masked_is_accepted_more_often(verification: str) -> None:
    longer = [
        with_a_model(*models(3, seed), 2, verification).length
        - with_a_model(*models(3, seed, masked=False), 2, verification, masked=False).length
        for seed in SEEDS
    ]
    assert sum(longer) > 0.1


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("tokens", [(0, 1, 2), (3, 3, 3), (2, 0, 1), (1, 2, 0)])
def test_what_is_looked_up_leaves_the_distribution_alone(verification: str, tokens: tuple[int, ...]) -> None:
    drafted = 0
    for seed in range(8):
        target, _ = models(4, seed)
        result, count = without_a_model(target, 3, verification, looked_up(tokens))
        assert result.error(target) <= PROBABILITY_TOLERANCE
        drafted += count
    assert 0 < drafted < 24  # some of it is cut off


@pytest.mark.parametrize("verification", ["block", "token"])
def test_what_is_forced_leaves_the_distribution_alone(verification: str) -> None:
    drafted = 0
    for seed in range(24):
        target, _ = models(4, seed)
        result, count = without_a_model(target, 2, verification, forced(2))
        assert result.error(target) <= PROBABILITY_TOLERANCE
        assert count == 0 or result.length >= 1 + count - 1e-12  # what is forced stands
        drafted += count
    assert drafted > 3
