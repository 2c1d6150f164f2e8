"""A lookup behind the model's tokens in the same round: what it drafts, and that the output stays the target's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import Drafter
from specexport.runtime.drafting.lookup import Lookup, NgramLookup
from specexport.runtime.drafting.model_draft import ModelDraft
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, check_invariant, greedy_tokens
from support.rounds import match, prefill, propose

VOCAB = 9
TINY = Contract(capacity=64, max_draft_tokens=6, prompt_chunk=8, precision="fp32")


class Rule:
    """Takes whatever it is told; of the tokens that are looked up, the first `most` in a round are legal."""

    def __init__(self, most: int = 99) -> None:
        self.told: list[str] = []
        self.most = most

    def legal(self, tokens: Sequence[int]) -> int:
        return min(len(tokens), self.most)

    def propose(self, draft_logits: np.ndarray) -> int:
        self.told.append("model")
        return int(draft_logits.argmax())

    def record_deterministic(self, draft_token: int) -> None:
        self.told.append("certain")


def made(prompt: Sequence[int], lookup: Lookup, rule: Rule) -> tuple[Drafter, Context, FakeDecoder, Statistics]:
    decoder, statistics = FakeDecoder(TINY, VOCAB, seed=4), Statistics()
    context = Context(CachedDecoder(FakeDecoder(TINY, VOCAB), 8), {"model": CachedDecoder(decoder, 8)}, "model")
    context.start(prompt)
    assert context.draft is not None
    drafter = Drafter(rule, ModelDraft(context.draft, rule, statistics), [lookup])
    return drafter, context, decoder, statistics


def prompt_for(own: int) -> tuple[list[int], list[int]]:
    """(a prompt behind which a bigram lookup first finds something behind the model's `own` tokens, what it finds)."""
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        prompt = rng.integers(0, VOCAB, 12).tolist()
        tokens = [int(token) for token in greedy_tokens(FakeDecoder(TINY, VOCAB, seed=4), prompt, 6)]
        found = [NgramLookup(2).find(prompt, 6 - count, tokens[:count]) for count in range(own + 1)]
        if not any(found[:-1]) and found[-1]:
            return prompt, [*tokens[:own], *found[-1]]
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("own", [1, 2, 3, 5])
def test_the_model_drafts_until_the_text_goes_on(own: int) -> None:
    prompt, expected = prompt_for(own)
    rule = Rule()
    draft, context, decoder, statistics = made(prompt, NgramLookup(2), rule)
    prefill(draft, context.tokens)
    assert propose(draft, context.tokens, 6) == expected
    assert rule.told == ["model"] * own + ["certain"] * (6 - own)
    assert statistics.draft_passes == own
    # Accepted as a whole: the model lacks the rows of what was looked up, and catches up.
    context.keep(len(prompt) + 6)
    context.tokens += [*expected, 5]
    check_invariant(context)
    model = Drafter(rule, ModelDraft(context.draft, rule, statistics))  # type: ignore[arg-type]
    assert tuple(propose(model, context.tokens, 3)) == greedy_tokens(decoder, context.tokens, 3)


def test_what_is_not_legal_is_not_looked_up_and_the_model_goes_on() -> None:
    prompt, expected = prompt_for(2)
    for most in (0, 1):
        rule = Rule(most)
        draft, context, decoder, _ = made(prompt, NgramLookup(2), rule)
        found = propose(draft, context.tokens, 6)
        own = tuple(found) if most == 0 else tuple(found[:2])
        assert own == greedy_tokens(decoder, prompt, len(own))
        assert found[: 2 + most] == expected[: 2 + most] or most == 0
        assert rule.told == ["model"] * len(own) + ["certain"] * (len(found) - len(own))


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_a_lookup_behind_a_draft_finds_what_it_finds_in_the_text_but_never_remembers_a_draft(shortest: int) -> None:
    found = 0
    for seed in range(8):
        rng = np.random.default_rng([seed, shortest])
        tokens, grown, end = rng.integers(0, 4, 90).tolist(), NgramLookup(shortest), 0
        while end < len(tokens):
            end += int(rng.integers(1, 6))
            drafted = rng.integers(0, 4, int(rng.integers(1, 4))).tolist()
            text, fresh = tokens[:end], NgramLookup(shortest)
            fresh.find(text, 0)
            before = grown.find(text, 5)
            expected = fresh.find(text, 5, drafted)
            assert grown.find(text, 5, drafted) == expected
            assert grown.find(text, 5) == before
            found += bool(expected)
    assert found


class DraftStop:
    """Lets the model draft up to `allowed` tokens and takes `most` of what is looked up."""

    def __init__(self, allowed: int, most: int) -> None:
        self.allowed, self.most = allowed, most
        self.asked: list[tuple[list[float], int]] = []

    def include(self, index: int, logits: np.ndarray) -> bool:
        return index < self.allowed

    def go_on(self, num_drafted: int) -> bool:
        return num_drafted < self.allowed

    def looked_up(self, odds: Sequence[float], drafted: int) -> int:
        self.asked.append((list(odds), drafted))
        return self.most


def test_a_guide_says_how_much_is_looked_up_and_how_much_is_drafted() -> None:
    prompt, expected = prompt_for(2)
    for allowed, most, drafted, passes in ((6, 3, 5, 2), (0, 3, 0, 0), (1, 3, 1, 1)):
        draft_stop = DraftStop(allowed, most)
        draft, context, decoder, statistics = made(prompt, NgramLookup(2), Rule())
        prefill(draft, context.tokens, draft_stop)
        assert propose(draft, context.tokens, 6, draft_stop) == expected[:drafted]
        assert statistics.draft_passes == passes
        assert bool(decoder.steps) == (allowed > 0)  # no row of a model that is not to draft
        assert [(len(odds), place) for odds, place in draft_stop.asked] == [(4, 2)] * (allowed > 1)
        assert all(odds == list(match(int(odds[0]) + 1, 4)) and odds[0] >= 1 for odds, _ in draft_stop.asked)


def test_a_lookup_says_how_long_its_match_is() -> None:
    text = list(range(40))
    for length in (2, 3, 5, 9, 30):
        lookup = NgramLookup(2)
        assert lookup.find([*text, 99, *text[:length]], 2) == [length, length + 1]
        assert lookup.odds == match(length, 2)
        assert lookup.find([*text, 99, *text[:length]], 1, [length, length + 1]) == [length + 2]
        assert lookup.odds == match(length + 2, 1)


def test_after_forced_tokens_the_model_drafts_alone() -> None:
    prompt, _ = prompt_for(1)
    draft, context, decoder, _ = made(prompt, NgramLookup(1), Rule())
    tokens = draft.propose(context.tokens, RoundPlan(6, forced=(7, 8))).tokens
    assert tuple(tokens) == (7, 8, *greedy_tokens(decoder, [*prompt, 7, 8], 4))
