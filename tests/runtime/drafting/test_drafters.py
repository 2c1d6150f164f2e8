"""Where draft tokens come from, on decoders whose logits betray a wrong cache row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.errors import ParameterError
from specexport.runtime.drafting.drafters import Draft, make_draft
from specexport.runtime.drafting.names import all_drafters, check_drafter
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, check_invariant, greedy_tokens
from support.refusals import refused
from support.rounds import prefill, propose

DRAFTERS = all_drafters(("model",))
VOCAB = 9
TINY = Contract(capacity=40, max_draft_tokens=4, prompt_chunk=8, precision="fp32")


class Told:
    """A greedy rule that remembers what it was told, in order.

    constrained: by a grammar. forbidden: never legal.
    """

    def __init__(self, constrained: bool = False, forbidden: int = -1) -> None:
        self.drafted: list[tuple[str, int]] = []
        self.constrained, self.forbidden = constrained, forbidden

    def legal(self, tokens: Sequence[int]) -> int:
        return tokens.index(self.forbidden) if self.forbidden in tokens else len(tokens)

    def propose(self, draft_logits: np.ndarray) -> int:
        self.drafted.append(("model", int(draft_logits.argmax())))
        return self.drafted[-1][1]

    def record_deterministic(self, draft_token: int) -> None:
        self.drafted.append(("certain", draft_token))


def made(
    name: str, prompt: Sequence[int], chunk: int = 8, rule: Told | None = None
) -> tuple[Draft, Context, FakeDecoder, Told, Statistics]:
    model, rule, statistics = FakeDecoder(TINY, VOCAB, seed=4), rule or Told(), Statistics()
    context = Context(CachedDecoder(FakeDecoder(TINY, VOCAB), chunk), {"model": CachedDecoder(model, chunk)}, "model")
    context.start(prompt)
    draft = make_draft([name], context, rule, statistics)
    return draft, context, model, rule, statistics


@pytest.mark.parametrize("length", [1, 2, 3, 12])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_models_tokens_are_its_own_greedy_ones(length: int, count: int) -> None:
    prompt = list(range(length)) if length < VOCAB else [index % 5 for index in range(length)]
    draft, context, model, rule, _ = made("model", prompt)
    prefill(draft, context.tokens)
    found = propose(draft, context.tokens, count)
    assert tuple(found) == greedy_tokens(model, prompt, count)
    assert rule.drafted == [("model", token) for token in found]
    assert context.draft.rows == length + count - 1  # type: ignore[union-attr]


@pytest.mark.parametrize("missed", [1, 2, 3, 9, 20])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_the_model_catches_up_with_what_others_drafted(missed: int, chunk: int) -> None:
    prompt = [1, 2, 3, 4, 5]
    draft, context, model, _, _ = made("model", prompt, chunk)
    prefill(draft, context.tokens)
    propose(draft, context.tokens, 2)
    # The model's own tokens are rejected, and rounds without it bring `missed` others.
    context.tokens += [(index * 7) % VOCAB for index in range(missed)]
    context.keep(5)
    check_invariant(context)
    found = propose(draft, context.tokens, 3)
    assert tuple(found) == greedy_tokens(model, context.tokens, 3)
    context.keep(len(context.tokens) - 1)
    check_invariant(context)
    assert all(width <= max(2, chunk) for width, _ in model.steps)


def test_a_lookup_tells_the_rule_every_token() -> None:
    draft, context, model, rule, _ = made("ngram", [1, 2, 3, 4, 1, 2])
    prefill(draft, context.tokens)
    assert propose(draft, context.tokens, 2) == [3, 4]
    assert rule.drafted == [("certain", 3), ("certain", 4)]
    context.tokens += [3, 8]
    assert propose(draft, context.tokens, 4) == []
    assert model.steps == []


def test_the_model_drafts_where_the_lookup_finds_nothing() -> None:
    draft, context, model, rule, _ = made("ngram+model", [1, 2, 3, 4, 5, 1, 2, 3, 4])
    prefill(draft, context.tokens)
    assert model.steps == [(7, 0)]
    assert propose(draft, context.tokens, 4) == [5, 1, 2, 3]
    assert model.steps == [(7, 0)]
    context.tokens += [5, 8, 8]
    found = propose(draft, context.tokens, 3)
    assert tuple(found) == greedy_tokens(model, context.tokens, 3)
    assert [kind for kind, _ in rule.drafted] == ["certain"] * 4 + ["model"] * 3


@pytest.mark.parametrize(("name", "alone"), [("ngram", True), ("ngram+model", False)])
def test_a_match_beside_a_model_must_be_longer(name: str, alone: bool) -> None:
    for length in (1, 2, 3, 4):
        repeated = [1, 2, 3, 4][:length]
        draft, context, *_ = made(name, [*repeated, 7, 8, 6, *repeated])
        prefill(draft, context.tokens)
        sources = draft.propose(context.tokens, RoundPlan(1)).sources
        assert ("lookup" in sources) == (length >= (2 if alone else 3))


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_model_of_which_nothing_is_left_ends_the_draft(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, context, model, rule, _ = made("model", [1, 2, 3])
    drawn = rule.propose
    monkeypatch.setattr(rule, "propose", lambda logits: drawn(logits) if len(rule.drafted) < left else None)
    prefill(draft, context.tokens)
    found = propose(draft, context.tokens, 4)
    assert tuple(found) == greedy_tokens(model, [1, 2, 3], left)
    context.keep(2)
    context.tokens += [5]
    check_invariant(context)
    monkeypatch.undo()
    assert tuple(propose(draft, context.tokens, 2)) == greedy_tokens(model, [1, 2, 3, 5], 2)


@pytest.mark.parametrize("name", ["", "models", "model+ngram", "ngram+ngram", "ngram+", 3, True, [], object])
def test_names_that_no_drafter_has(name: object) -> None:
    with refused(ParameterError, field="drafter"):
        check_drafter(name, ("model",))  # type: ignore[arg-type]
    with refused(ParameterError, "--draft", field="drafter"):
        check_drafter(name, ())  # type: ignore[arg-type]


def test_a_lookup_ends_where_the_grammar_forbids_it() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 1, 2]
    draft, *_, rule, _ = made("ngram", prompt, rule=Told(True, forbidden=5))
    assert draft.propose(prompt, RoundPlan(4)) == ([3, 4], ["lookup", "lookup"])
    assert rule.drafted == [("certain", 3), ("certain", 4)]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_forced_tokens_come_first_and_cost_no_pass(name: str, count: int) -> None:
    """Behind them only the model goes on, from the sequence with them."""
    prompt, forced = [1, 2, 3, 4, 5, 6, 1, 2], (7, 8)
    draft, context, model, rule, statistics = made(name, prompt, rule=Told(True))
    free = max(0, count - 2) if "model" in name else 0
    expected = [*forced[:count], *greedy_tokens(model, [*prompt, *forced], free)]
    found = draft.propose(prompt, RoundPlan(count, forced=forced[:count]))
    assert found == (expected, ["grammar"] * min(2, count) + ["model"] * free)
    assert rule.drafted == [("certain", token) for token in forced[:count]] + [
        ("model", token) for token in expected[2:]
    ]
    assert statistics.draft_passes == free
    context.keep(len(prompt) - 1)  # all of them rejected
    check_invariant(context)


def test_nothing_is_drafted_where_nothing_is_asked_for() -> None:
    for name in DRAFTERS:
        draft, context, model, rule, _ = made(name, [1, 2, 1, 2, 1, 2, 1, 2])
        draft.prefill(context.tokens, RoundPlan(0))
        steps = list(model.steps)
        assert draft.propose(context.tokens, RoundPlan(0)).tokens == []
        assert (model.steps, rule.drafted) == (steps, [])
