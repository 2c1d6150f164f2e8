"""The loop, on decoders whose logits betray a row that is stale, missing or out of place."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from doubles import FakeDecoder, greedy_tokens
from specexport.bundle import Contract
from specexport.runtime.acceptance import GreedyRule
from specexport.runtime.context import CachedDecoder, Context
from specexport.runtime.speculate import decode
from specexport.runtime.statistics import Statistics

VOCAB = 9
TINY = Contract(capacity=40, max_draft_tokens=4, prompt_chunk=8, precision="fp32")


def pair(seed: int, noise: float = 0.6, scale: float = 1.0) -> tuple[FakeDecoder, FakeDecoder]:
    return FakeDecoder(TINY, VOCAB, seed), FakeDecoder(TINY, VOCAB, seed, noise=noise, scale=scale)


def run(
    target: FakeDecoder, draft: FakeDecoder, prompt: list[int], k: int, limit: int, chunk: int = TINY.prompt_chunk
) -> tuple[list[int], Statistics, Context]:
    context, statistics = Context(CachedDecoder(target), CachedDecoder(draft)), Statistics()
    context.start(prompt)
    emitted = []
    for tokens in decode(context, GreedyRule(VOCAB), k, limit, chunk, statistics):
        emitted += tokens
        check_invariant(context)
    assert context.tokens == prompt + emitted
    return emitted, statistics, context


def check_invariant(context: Context) -> None:
    for cached in (context.target, context.draft):
        assert cached.rows < len(context.tokens)
        assert cached.decoder.rows[: cached.rows].tolist() == context.tokens[: cached.rows]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 10, 16, 17, 18, 26])
def test_greedy_output_is_the_targets_own(k: int, length: int) -> None:
    accepted = 0
    for seed in range(6):
        target, draft = pair(seed)
        prompt = prompt_of(length, seed)
        emitted, statistics, _ = run(target, draft, prompt, k, TINY.capacity - length)
        assert tuple(emitted) == greedy_tokens(target, prompt, TINY.capacity - length)
        accepted += statistics.accepted
    assert (accepted > 0) == (k > 0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6, 30])
def test_any_chunk_gives_the_same(chunk: int) -> None:
    target, draft = pair(1)
    prompt = prompt_of(13)
    assert tuple(run(target, draft, prompt, 3, 20, chunk)[0]) == greedy_tokens(target, prompt, 20)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_target_as_its_own_draft_accepts_everything(k: int, length: int) -> None:
    target, draft = pair(3, noise=0.0)
    limit = 5 * (k + 1)
    emitted, statistics, _ = run(target, draft, prompt_of(length), k, limit)
    assert len(emitted) == limit
    assert statistics.rounds == 5
    assert statistics.acceptance_rate == 1.0
    assert statistics.mean_acceptance_length == k + 1


@pytest.mark.parametrize("k", [1, 4])
def test_a_draft_that_is_always_wrong_costs_rounds_and_nothing_else(k: int) -> None:
    target, draft = pair(4, noise=0.0, scale=-1.0)
    prompt = prompt_of(5)
    emitted, statistics, _ = run(target, draft, prompt, k, 20)
    assert tuple(emitted) == greedy_tokens(target, prompt, 20)
    assert (statistics.rounds, statistics.accepted) == (20, 0)


@pytest.mark.parametrize("limit", range(1, 12))
def test_never_more_than_the_limit(limit: int) -> None:
    target, draft = pair(5, noise=0.0)
    emitted, statistics, _ = run(target, draft, prompt_of(4), 4, limit)
    assert len(emitted) == limit
    assert statistics.rounds + statistics.accepted == limit


def test_no_limit_left_runs_no_round() -> None:
    target, draft = pair(5)
    assert run(target, draft, prompt_of(4), 4, 0)[0] == []


def test_the_first_draft_step_feeds_two_tokens_and_the_others_one() -> None:
    target, draft = pair(6, noise=0.0)
    run(target, draft, prompt_of(6), 4, 5)
    assert draft.steps == [(4, 0), (2, 4), (1, 6), (1, 7), (1, 8)]
    assert target.steps == [(5, 0), (5, 5)]


def test_plain_decoding_never_touches_the_draft() -> None:
    target, draft = pair(6)
    run(target, draft, prompt_of(6), 0, 5)
    assert draft.steps == []
    assert target.steps == [(5, 0), *((1, position) for position in range(5, 10))]


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_an_abandoned_loop_leaves_a_context_that_goes_on_right(rounds: int) -> None:
    target, draft = pair(7)
    prompt = prompt_of(6)
    context = Context(CachedDecoder(target), CachedDecoder(draft))
    context.start(prompt)
    loop = decode(context, GreedyRule(VOCAB), 3, 30, 8, Statistics())
    list(islice(loop, rounds))
    loop.close()
    check_invariant(context)
    longer = [*context.tokens, 1, 2]
    context.start(longer)
    emitted = [token for tokens in decode(context, GreedyRule(VOCAB), 3, 8, 8, Statistics()) for token in tokens]
    assert tuple(emitted) == greedy_tokens(target, longer, 8)


@pytest.mark.parametrize("failing", range(12))
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_step_that_fails_leaves_a_context_that_goes_on_right(failing: int, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = pair(8)
    prompt = prompt_of(18)
    decoder = target if role == "target" else draft
    write, count = decoder.write, iter(range(100))

    def fail_once(tokens: list[int], position: int) -> None:
        if next(count) == failing:
            write([token ^ 1 for token in tokens], position)  # half done: wrong rows are left
            raise RuntimeError("engine")
        write(tokens, position)

    monkeypatch.setattr(decoder, "write", fail_once)
    context = Context(CachedDecoder(target), CachedDecoder(draft))
    context.start(prompt)
    with pytest.raises(RuntimeError, match="engine"):
        list(decode(context, GreedyRule(VOCAB), 2, 22, 8, Statistics()))
    again = context.tokens[:35]
    context.start(again)
    emitted = [token for tokens in decode(context, GreedyRule(VOCAB), 2, 5, 8, Statistics()) for token in tokens]
    assert tuple(emitted) == greedy_tokens(target, again, 5)
