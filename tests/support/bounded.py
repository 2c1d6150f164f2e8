"""What output under a grammar is, written by itself: the target's row, masked, then processed; and rounds of a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from specexport.errors import GrammarError
from specexport.runtime.proofs.enumeration import Chain, Enumeration, enumerate_rounds
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import SamplingRule, make_rule
from specexport.runtime.sampling.truncation import processed_distribution


@dataclass
class Bounded(Chain):
    """The definition: logits behind a context, masked by the grammar, then truncated.

    grammar: None for none. matcher: what a rule is given in its place, where that is another one.
    """

    grammar: Any = None
    matcher: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    rows: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)

    def logits(self, context: tuple[int, ...]) -> np.ndarray:
        if context not in self.rows:
            rng = np.random.default_rng([self.seed, 7, len(context), *context])
            self.rows[context] = rng.normal(scale=1.5, size=self.vocab).astype(np.float32)
        return self.rows[context]

    def after(self, context: tuple[int, ...]) -> np.ndarray:
        if context not in self.known:
            row = self.logits(context).copy()
            state = self.grammar and state_behind(self.grammar, context)
            if state is not None:
                row[~state.allowed()] = -np.inf
            parameters = SamplingParameters(temperature=1.0, **self.options)
            probs = np.zeros(self.vocab)
            for token, probability in processed_distribution(row, parameters).items():
                probs[token] = probability
            self.known[context] = probs
        return self.known[context]


def state_behind(grammar: Any, context: tuple[int, ...]) -> Any:
    """None behind what the grammar forbids: no output comes there."""
    state = grammar.copy()
    try:
        for token in context:
            state.advance(token)
    except GrammarError:
        return None
    return state


class Told:
    """Noise that is given."""

    def __init__(self, *uniforms: float) -> None:
        self.uniforms = list(uniforms)

    def random(self, count: int) -> np.ndarray:
        given, self.uniforms = self.uniforms[:count], self.uniforms[count:]
        return np.array(given)


def draws(probs: np.ndarray, token: int) -> float:
    """A uniform that draws `token`."""
    return float(probs[:token].sum() + probs[token] / 2)


def rule_of(target: Bounded, verification: str) -> SamplingRule:
    assert target.grammar is not None
    parameters = SamplingParameters(temperature=1.0, verification=verification, **target.options)
    rule = make_rule(parameters, target.vocab, [0], (), (target.matcher or target.grammar).copy())
    assert isinstance(rule, SamplingRule)
    return rule


def judged(rule: SamplingRule, target: Bounded, drafted: Sequence[int], uniforms: Sequence[float]) -> tuple[int, int]:
    """The round's outcome; rows behind what the grammar forbids are of no use to anybody."""
    rule._target_noise = Told(*uniforms)  # type: ignore[assignment]
    rows = [target.logits(tuple(drafted[:index])) for index in range(len(drafted) + 1)]
    return rule.accept(np.stack(rows), drafted)


def with_a_model(target: Bounded, draft: Bounded, k: int, verification: str, masked: bool = True) -> Enumeration:
    """masked: whether the draft is bounded too; else what it draws may be forbidden."""

    def run(draft_tokens: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, int]:
        rule = rule_of(target, verification)
        rule._draft_noise = Told(
            *(draws(draft.after(draft_tokens[:index]), token) for index, token in enumerate(draft_tokens))
        )  # type: ignore[assignment]
        bounds = rule._constraint
        for index, token in enumerate(draft_tokens):
            rule._constraint = bounds if masked else None
            assert rule.propose(draft.logits(draft_tokens[:index])) == token
        rule._constraint = bounds
        return judged(rule, target, draft_tokens, uniforms)

    return enumerate_rounds(run, target, draft, k)
