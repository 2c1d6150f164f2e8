"""L0 of docs/losslessness.md: the acceptance rules, enumerated in float64 and not sampled."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from specexport.runtime.acceptance import GreedyRule, SamplingRule, make_rule, verify_tokens
from specexport.runtime.sampling import SamplingParameters, processed_probabilities

STEPS = 2**53  # uniforms are multiples of 2**-53


def measure(holds: Callable[[float], bool]) -> float:
    """The share of uniforms for which `holds` is true, when it is true up to some uniform and false from there on."""
    low, high = 0, STEPS
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle / STEPS) else (low, middle)
    return low / STEPS


def shares(token: Callable[[float], int], vocab: int) -> list[float]:
    """The share of uniforms for which `token`, a function that does not fall, is each of the ids."""
    below = [measure(lambda uniform, v=v: token(uniform) <= v) for v in range(vocab)]
    return np.diff([0.0, *below]).tolist()


@dataclass
class Chain:
    """A distribution of the next token for every context; some have zeros, some are one-hot."""

    vocab: int
    seed: int
    known: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)

    def after(self, context: tuple[int, ...]) -> np.ndarray:
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

    def joint(self, length: int) -> dict[tuple[int, ...], float]:
        return {
            tokens: float(np.prod([self.after(tokens[:i])[token] for i, token in enumerate(tokens)]))
            for tokens in itertools.product(range(self.vocab), repeat=length)
        }


def outcomes(target_probs: np.ndarray, draft_probs: list[np.ndarray], draft_tokens: tuple[int, ...]) -> Iterator[tuple[int, int, float]]:
    """Every `(num_accepted, next_token, probability)` of one draft, uniforms integrated out by bisection."""
    k, vocab = len(draft_tokens), target_probs.shape[1]

    def run(uniforms: list[float]) -> tuple[int, int]:
        return verify_tokens(target_probs, draft_probs, draft_tokens, np.array(uniforms))

    def ending(accepted: list[float], rejected: list[float], count: int, weight: float) -> Iterator[tuple[int, int, float]]:
        head = accepted + rejected
        padding = [0.5] * (k - len(head))
        last = shares(lambda uniform: run([*head, *padding, uniform])[1], vocab)
        assert run([*head, *padding, 0.5])[0] == count
        yield from ((count, token, weight * share) for token, share in enumerate(last))

    accepted: list[float] = []
    weight = 1.0
    for index in range(k):
        padding = [0.5] * (k - index)
        share = measure(lambda uniform, head=tuple(accepted), padding=padding: run([*head, uniform, *padding])[0] > len(head))
        # Two places of the rejected piece: what follows must not depend on the uniform that rejected.
        for place in (0.25, 0.75):
            if share < 1:
                yield from ending(accepted, [share + (1 - share) * place], index, weight * (1 - share) / 2)
        if share == 0:
            return
        accepted.append(share / 2)
        weight *= share
    yield from ending(accepted, [], k, weight)


def output_joint(target: Chain, draft: Chain, k: int) -> dict[tuple[int, ...], float]:
    """The distribution of the first k + 1 tokens, the target itself continuing what a round leaves open."""
    joint: dict[tuple[int, ...], float] = defaultdict(float)
    for draft_tokens in itertools.product(range(draft.vocab), repeat=k):
        drafted = float(np.prod([draft.after(draft_tokens[:i])[token] for i, token in enumerate(draft_tokens)]))
        if drafted == 0:
            continue
        target_probs = np.stack([target.after(draft_tokens[:i]) for i in range(k + 1)])
        draft_probs = [draft.after(draft_tokens[:i]) for i in range(k)]
        for num_accepted, next_token, probability in outcomes(target_probs, draft_probs, draft_tokens):
            head = (*draft_tokens[:num_accepted], next_token)
            for tail in itertools.product(range(target.vocab), repeat=k + 1 - len(head)):
                tokens = head + tail
                rest = np.prod([target.after(tokens[:i])[tokens[i]] for i in range(len(head), k + 1)])
                joint[tokens] += drafted * probability * float(rest)
    return joint


@pytest.mark.parametrize(("vocab", "k"), [(3, 1), (4, 1), (3, 2), (4, 2), (3, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_output_of_token_verification_is_the_targets_own(vocab: int, k: int, seed: int) -> None:
    target, draft = Chain(vocab, seed), Chain(vocab, 100 + seed)
    joint = output_joint(target, draft, k)
    assert sum(joint.values()) == pytest.approx(1.0, abs=1e-12)
    for tokens, probability in target.joint(k + 1).items():
        assert joint[tokens] == pytest.approx(probability, abs=1e-12)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    chain = Chain(3, 7)
    for draft_tokens in itertools.product(range(3), repeat=2):
        probs = [chain.after(draft_tokens[:i]) for i in range(3)]
        if all(probs[i][token] > 0 for i, token in enumerate(draft_tokens)):
            accepted = {count for count, _, share in outcomes(np.stack(probs), probs[:2], draft_tokens) if share}
            assert accepted == {2}


def test_a_uniform_of_zero_never_accepts_what_the_target_excludes() -> None:
    target_probs = np.array([[0.0, 1.0], [0.5, 0.5]])
    assert verify_tokens(target_probs, [np.array([1.0, 0.0])], [0], np.zeros(2)) == (0, 1)


def test_a_uniform_at_the_ratio_rejects() -> None:
    target_probs, draft = np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([0.5, 0.5])
    assert verify_tokens(target_probs, [draft], [0], np.array([np.nextafter(0.5, 0), 0.0]))[0] == 1
    assert verify_tokens(target_probs, [draft], [0], np.array([0.5, 0.0]))[0] == 0


def test_a_residual_that_rounds_to_nothing_means_the_target() -> None:
    # The draft's 0.5 is one ulp too large, so the uniform next to 1 rejects although no mass is left over.
    target = np.array([0.5, 0.0, 0.5])
    draft = np.array([np.nextafter(0.5, 1), 0.0, np.nextafter(0.5, 1)])
    almost = 1 - 2.0**-53
    for uniform, token in ((0.0, 0), (0.49, 0), (0.51, 2), (almost, 2)):
        assert verify_tokens(np.stack([target, target]), [draft], [0], np.array([almost, uniform])) == (0, token)


def test_one_hot_drafts_accept_with_the_targets_probability() -> None:
    target = np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
    found = list(outcomes(target, [np.array([0.0, 1.0, 0.0])], (1,)))
    assert sum(share for count, _, share in found if count == 1) == pytest.approx(0.5, abs=1e-15)
    for token, expected in ((0, 0.2), (1, 0.0), (2, 0.3)):
        assert sum(share for count, t, share in found if count == 0 and t == token) == pytest.approx(expected, abs=1e-15)


def test_one_probability_row_a_draft_token_is_demanded() -> None:
    with pytest.raises(ValueError, match="zip"):
        verify_tokens(np.full((2, 2), 0.5), [], [0], np.zeros(2))


class Scripted:
    """A noise source that gives what it is told."""

    def __init__(self, *uniforms: float) -> None:
        self.uniforms = list(uniforms)

    def random(self, count: int | None = None) -> object:
        if count is None:
            return self.uniforms.pop(0)
        given, self.uniforms = self.uniforms[:count], self.uniforms[count:]
        return np.array(given)


PARAMETERS = SamplingParameters(temperature=0.7, top_k=3, top_p=0.9, seed=1)


@pytest.mark.parametrize("draft_vocab", [3, 4, 6])
def test_the_rule_from_logits_to_tokens_keeps_the_targets_distribution(draft_vocab: int) -> None:
    """One draft token of a draft that knows fewer, as many, or more ids; every uniform integrated out."""
    rng = np.random.default_rng(draft_vocab)
    target_logits = rng.normal(size=(2, 4)).astype(np.float32)
    draft_logits = 2 * rng.normal(size=draft_vocab).astype(np.float32)
    draft_logits[-1] = 3.0  # the favourite of the larger draft is an id that the target lacks
    target_probs = processed_probabilities(target_logits, PARAMETERS)

    def propose(uniform: float) -> tuple[SamplingRule, int]:
        rule = SamplingRule(PARAMETERS, vocab_size=4)
        rule._draft_noise = Scripted(uniform)  # type: ignore[assignment]
        return rule, rule.propose(draft_logits)

    proposed = shares(lambda uniform: propose(uniform)[1], 4)
    assert sum(proposed) == pytest.approx(1, abs=1e-15)
    # What is proposed must follow what it is judged by.
    known = draft_logits[None, :4]
    assert proposed[: known.shape[1]] == pytest.approx(processed_probabilities(known, PARAMETERS)[0], abs=1e-15)

    first = np.zeros(4)
    for token, drafted in enumerate(proposed):
        if not drafted:
            continue

        def accept(*uniforms: float, token: int = token) -> tuple[int, int]:
            rule, proposed_token = propose(sum(proposed[:token]) + proposed[token] / 2)
            assert proposed_token == token
            rule._target_noise = Scripted(*uniforms)  # type: ignore[assignment]
            return rule.accept(target_logits, [token])

        accepted = measure(lambda uniform, accept=accept: accept(uniform, 0.5)[0] == 1)
        first[token] += drafted * accepted
        if accepted:
            bonus = shares(lambda uniform, accept=accept, half=accepted / 2: accept(half, uniform)[1], 4)
            assert bonus == pytest.approx(target_probs[1], abs=1e-15)
        if accepted < 1:
            first += (drafted * (1 - accepted)) * np.array(
                shares(lambda uniform, accept=accept, half=(1 + accepted) / 2: accept(half, uniform)[1], 4)
            )
    assert first == pytest.approx(target_probs[0], abs=1e-12)


def test_the_rule_forgets_a_round_when_it_is_over() -> None:
    rule = SamplingRule(PARAMETERS, vocab_size=4)
    logits = np.zeros((3, 4), np.float32)
    for _ in range(3):
        drafted = [rule.propose(logits[0]) for _ in range(2)]
        num_accepted, next_token = rule.accept(logits, drafted)
        assert num_accepted == 2
        assert 0 <= next_token < 4


def test_noise_of_drafting_and_of_acceptance_is_independent() -> None:
    rule = SamplingRule(PARAMETERS, vocab_size=4)
    draft, target = rule._draft_noise.random(4000), rule._target_noise.random(4000)
    assert abs(np.corrcoef(draft, target)[0, 1]) < 0.08  # five standard deviations
    assert not set(draft) & set(target)


def test_a_seed_repeats_and_another_does_not() -> None:
    def noise(seed: int | None) -> list[float]:
        rule = SamplingRule(SamplingParameters(1.0, seed=seed), 4)
        return [rule._draft_noise.random(), rule._target_noise.random()]

    assert noise(3) == noise(3)
    assert noise(3) != noise(4)
    assert noise(None) != noise(None)


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    rule = GreedyRule(4)
    tie = np.array([0.0, 2.0, 2.0, 1.0], np.float32)
    assert rule.propose(tie) == 1
    assert rule.accept(tie[None], []) == (0, 1)
    assert rule.accept(np.stack([tie, tie]), [1]) == (1, 1)
    assert rule.accept(np.stack([tie, tie]), [2]) == (0, 1)


def test_greedy_stops_at_the_first_difference() -> None:
    rows = np.eye(4, dtype=np.float32)
    assert GreedyRule(4).accept(rows, [0, 1, 2]) == (3, 3)
    assert GreedyRule(4).accept(rows, [0, 3, 2]) == (1, 1)
    assert GreedyRule(4).accept(rows, [1, 1, 2]) == (0, 0)


def test_greedy_never_proposes_an_id_that_the_target_lacks() -> None:
    assert GreedyRule(2).propose(np.array([0.0, 1.0, 5.0], np.float32)) == 1
    assert GreedyRule(4).propose(np.array([0.0, 1.0, 5.0], np.float32)) == 2


def test_temperature_zero_makes_the_greedy_rule() -> None:
    assert isinstance(make_rule(SamplingParameters(), 4), GreedyRule)
    assert isinstance(make_rule(SamplingParameters(temperature=0.1), 4), SamplingRule)
