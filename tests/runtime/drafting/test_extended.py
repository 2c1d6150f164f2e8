"""A lookup behind the model's tokens in the same round: what it drafts, and that the output stays the target's own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.runtime.drafting.drafters import ExtendedDraft, ForcedDraft, LookupDraft, ModelDraft
from specexport.runtime.drafting.lookup import Lookup, NgramLookup, SuffixLookup
from specexport.runtime.drafting.rounds import RoundPlan
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, outcomes
from specexport.runtime.sampling.acceptance import VERIFY
from specexport.runtime.sampling.distribution import Distribution, Probabilities
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import make_rule
from specexport.runtime.state.context import CachedDecoder, Context
from specexport.runtime.state.statistics import Statistics
from support.doubles import FakeDecoder, check_invariant, greedy_tokens
from support.rounds import prefill, propose

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

    def certain(self, draft_token: int) -> None:
        self.told.append("certain")


def made(prompt: Sequence[int], lookup: Lookup, rule: Rule) -> tuple[ExtendedDraft, Context, FakeDecoder, Statistics]:
    decoder, statistics = FakeDecoder(TINY, VOCAB, seed=4), Statistics()
    context = Context(CachedDecoder(FakeDecoder(TINY, VOCAB), 8), {"model": CachedDecoder(decoder, 8)}, "model")
    context.start(prompt)
    assert context.draft is not None
    lookups = [LookupDraft(lookup, rule, statistics)]
    return ExtendedDraft(ModelDraft(context.draft, rule, statistics), lookups), context, decoder, statistics


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
    assert (statistics.draft_passes, statistics.looked_up) == (own, 6 - own)
    # Accepted as a whole: the model lacks the rows of what was looked up, and catches up.
    context.keep(len(prompt) + 6)
    context.tokens += [*expected, 5]
    check_invariant(context)
    model = ModelDraft(context.draft, rule, statistics)  # type: ignore[arg-type]
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


def test_behind_forced_tokens_the_model_drafts_alone() -> None:
    prompt, _ = prompt_for(1)
    rule, statistics = Rule(), Statistics()
    draft, context, decoder, _ = made(prompt, NgramLookup(1), rule)
    found = ForcedDraft(draft, rule, statistics).propose(context.tokens, RoundPlan(6, forced=(7, 8))).tokens
    assert tuple(found) == (7, 8, *greedy_tokens(decoder, [*prompt, 7, 8], 4))


@pytest.mark.parametrize("kind", [NgramLookup, SuffixLookup])
@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_a_lookup_behind_a_draft_finds_what_it_finds_in_the_text_but_never_remembers_a_draft(
    kind: type[NgramLookup] | type[SuffixLookup], shortest: int
) -> None:
    found = 0
    for seed in range(8):
        rng = np.random.default_rng([seed, shortest])
        tokens, grown, end = rng.integers(0, 4, 90).tolist(), kind(shortest), 0
        while end < len(tokens):
            end += int(rng.integers(1, 6))
            drafted = rng.integers(0, 4, int(rng.integers(1, 4))).tolist()
            text, fresh = tokens[:end], kind(shortest)
            fresh.find(text, 0)
            before = grown.find(text, 5)
            expected = fresh.find(text, 5, drafted)
            assert grown.find(text, 5, drafted) == expected
            assert grown.find(text, 5) == before
            if expected:
                found += 1
                place = behind(text, drafted, shortest, expected)
                assert place is not None
    assert found


def behind(text: list[int], drafted: list[int], shortest: int, found: list[int]) -> int | None:
    """The last place of `text` behind which the sequence's last tokens came before and `found` follows."""
    whole = [*text, *drafted]
    for place in range(len(text), shortest - 1, -1):
        if whole[place - shortest : place] == whole[-shortest:] and place < len(whole):
            follows = list(whole[place:])
            while len(follows) < len(found):
                follows += whole[place:]
            if follows[: len(found)] == found:
                return place
    return None


class Guide:
    """Lets the model draft up to `allowed` tokens and takes `most` of what is looked up."""

    def __init__(self, allowed: int, most: int) -> None:
        self.allowed, self.most = allowed, most
        self.asked: list[tuple[int, int, int]] = []

    def include(self, index: int, logits: np.ndarray) -> bool:
        return index < self.allowed

    def go_on(self, num_drafted: int) -> bool:
        return num_drafted < self.allowed

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        self.asked.append((count, length, drafted))
        return self.most


def test_a_guide_says_how_much_is_looked_up_and_how_much_is_drafted() -> None:
    prompt, expected = prompt_for(2)
    for allowed, most, drafted, passes in ((6, 3, 5, 2), (0, 3, 0, 0), (1, 3, 1, 1)):
        decoder, statistics, guide = FakeDecoder(TINY, VOCAB, seed=4), Statistics(), Guide(allowed, most)
        context = Context(CachedDecoder(FakeDecoder(TINY, VOCAB), 8), {"model": CachedDecoder(decoder, 8)}, "model")
        context.start(prompt)
        assert context.draft is not None
        lookups = [LookupDraft(NgramLookup(2), Rule(), statistics)]
        draft = ExtendedDraft(ModelDraft(context.draft, Rule(), statistics), lookups)
        prefill(draft, context.tokens, guide)
        assert propose(draft, context.tokens, 6, guide) == expected[:drafted]
        assert statistics.draft_passes == passes
        assert bool(decoder.steps) == (allowed > 0)  # no row of a model that is not to draft
        assert [(count, place) for count, _, place in guide.asked] == [(4, 2)] * (allowed > 1)
        assert all(length >= 2 for _, length, _ in guide.asked)


def test_what_is_not_taken_at_all_leaves_the_model_to_go_on() -> None:
    prompt, _ = prompt_for(2)
    decoder, guide = FakeDecoder(TINY, VOCAB, seed=4), Guide(6, 0)
    context = Context(CachedDecoder(FakeDecoder(TINY, VOCAB), 8), {"model": CachedDecoder(decoder, 8)}, "model")
    context.start(prompt)
    assert context.draft is not None
    lookups = [LookupDraft(NgramLookup(2), Rule(), Statistics())]
    draft = ExtendedDraft(ModelDraft(context.draft, Rule(), Statistics()), lookups)
    assert tuple(propose(draft, context.tokens, 6, guide)) == greedy_tokens(decoder, prompt, 6)


@pytest.mark.parametrize("kind", [NgramLookup, SuffixLookup])
def test_a_lookup_says_how_long_its_match_is(kind: type[NgramLookup] | type[SuffixLookup]) -> None:
    text = list(range(40))
    for length in (2, 3, 5, 9, 30):
        lookup = kind(2)
        assert lookup.find([*text, 99, *text[:length]], 1) == [length]
        assert lookup.matched == length
        assert lookup.find([*text, 99, *text[:length]], 1, [length, length + 1]) == [length + 2]
        assert lookup.matched == length + 2


def test_chunks_are_told_where_each_token_came_from() -> None:
    prompt, expected = prompt_for(2)
    decoder, statistics = FakeDecoder(TINY, VOCAB, seed=4), Statistics()
    context = Context(CachedDecoder(FakeDecoder(TINY, VOCAB), 8), {"model": CachedDecoder(decoder, 8)}, "model")
    context.start(prompt)
    rule = make_rule(SamplingParameters(), VOCAB, prompt, ())
    assert context.draft is not None
    lookups = [LookupDraft(NgramLookup(2), rule, statistics)]
    found = ExtendedDraft(ModelDraft(context.draft, rule, statistics), lookups).propose(prompt, RoundPlan(6))
    assert found.tokens == expected
    assert found.sources == ["model"] * 2 + ["lookup"] * 4


class Drawn:
    """Stands for a model whose draws come out as given."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        pass

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        yield from self.tokens[: plan.num_draft_tokens]


def drafts(prompt: Sequence[int], k: int, vocab: int) -> dict[tuple[int, ...], list[int]]:
    """By the model's part of it, every draft."""
    found = {}
    for drawn in itertools.product(range(vocab), repeat=k):
        rule, lookup = Rule(), NgramLookup(2)
        draft = ExtendedDraft(Drawn(drawn), [LookupDraft(lookup, rule, Statistics())])  # type: ignore[arg-type]
        tokens = propose(draft, prompt, k)
        found[drawn[: k - len(rule.told)]] = tokens
    return found


def joint(
    verify: str, prompt: Sequence[int], k: int, target: Chain, draft: Chain, honest: bool
) -> dict[tuple[int, ...], float]:
    """The distribution of k + 1 tokens. honest: what was looked up is judged as a token without chance, not as a draw
    of the model's.
    """
    found: dict[tuple[int, ...], float] = defaultdict(float)
    rng = np.random.default_rng(0)
    for own, tokens in drafts(prompt, k, target.vocab).items():

        def run(draft_tokens: tuple[int, ...], uniforms: Sequence[float], own: int = len(own)) -> tuple[int, int]:
            told = [
                Distribution(draft.after(draft_tokens[:i]))
                if i < own or not honest
                else Distribution.certain(draft_tokens[i])
                for i in range(len(draft_tokens))
            ]
            return VERIFY[verify](
                lambda i: Distribution(target.after(draft_tokens[:i])), told, draft_tokens, np.array(uniforms)
            )

        if not draft.probability(own):
            continue
        for count, token, chance in outcomes(run, tuple(tokens), target.vocab, rng):
            head = (*tokens[:count], token)
            for tail in itertools.product(range(target.vocab), repeat=k + 1 - len(head)):
                share = chance * target.probability(head + tail, given=len(head))
                found[head + tail] += draft.probability(own) * share
    return found


class Everywhere(Chain):
    """Has no zeros, by which a ratio would be divided."""

    def after(self, context: tuple[int, ...]) -> Probabilities:
        return 0.9 * super().after(context) + 0.1 / self.vocab


PROMPTS = ((0, 1, 2, 0, 2, 1, 1), (0, 1, 2, 2, 1))


@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_output_is_the_targets_own(verify: str, prompt: tuple[int, ...]) -> None:
    k, lengths = 3, {len(own) for own in drafts(prompt, 3, 3)}
    assert len(lengths) > 1
    for seed in range(6):
        target = Chain(3, seed)
        found = joint(verify, prompt, k, target, Chain(3, 100 + seed), honest=True)
        every = itertools.product(range(3), repeat=k + 1)
        assert max(abs(found[tokens] - target.probability(tokens)) for tokens in every) <= PROBABILITY_TOLERANCE


@pytest.mark.parametrize("verify", VERIFY)
def test_the_enumeration_finds_lookups_that_are_judged_as_the_models(verify: str) -> None:
    worst = 0.0
    for seed in range(6):
        target, draft = Chain(3, seed), Everywhere(3, 100 + seed)
        found = joint(verify, PROMPTS[0], 3, target, draft, honest=False)
        every = itertools.product(range(3), repeat=4)
        worst = max(worst, *(abs(found[tokens] - target.probability(tokens)) for tokens in every))
    assert worst > 1e-3
