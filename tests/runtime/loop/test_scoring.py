"""Scores of a prompt: the target's own log-probabilities, whatever the caches held before, and caches left right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.base import Logits
from specexport.errors import EngineError, LongPromptError, ParameterError, PromptError
from specexport.runtime.loop.scoring import Scores
from specexport.runtime.sampling.logprobs import TokenLogprobs
from specexport.runtime.session import Session
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from support.doubles import CONTRACT, VOCAB, FakeDecoder, StatefulDecoder, check_invariant, fake_session, greedy_tokens
from support.hidden_doubles import check_rows, hidden_pair
from support.pair import Pair
from support.refusals import refused

MOST = CONTRACT.capacity - 1


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


def expected(decoder: FakeDecoder, prompt: Sequence[int], likeliest: int = 0) -> list[tuple[Any, ...]]:
    """Token, log-probability, rank and the likeliest, from logits that no cache gave."""
    found = []
    for place in range(1, len(prompt)):
        logits = decoder.logits_after(prompt[:place]).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum())
        order = np.argsort(-logprobs, kind="stable")
        rank = 1 + order.tolist().index(prompt[place])
        top = [(int(token), pytest.approx(logprobs[token], abs=1e-4)) for token in order[:likeliest]]
        found.append((prompt[place], pytest.approx(logprobs[prompt[place]], abs=1e-4), rank, top))
    return found


def told(entries: Sequence[TokenLogprobs]) -> list[tuple[Any, ...]]:
    return [(one.token, one.logprob, one.rank, list(one.likeliest)) for one in entries]


@pytest.fixture(params=[FakeDecoder, StatefulDecoder])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    return fake_session(tmp_path, request.param(seed=3), FakeDecoder(seed=3, noise=0.4))


def target(session: Session) -> FakeDecoder:
    assert isinstance(session.engine.target, FakeDecoder)
    return session.engine.target


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 16, 40, MOST])
def test_every_token_but_the_first_has_the_targets_own(session: Session, length: int) -> None:
    prompt = prompt_of(length)
    found = session.score(prompt, likeliest=3)
    assert told(found.prompt_logprobs) == expected(target(session), prompt, 3)
    assert (found.tokens, found.text, found.finish_reason) == ((), "", "length")
    assert (found.statistics.prompt_tokens, found.statistics.emitted) == (length, 0)
    assert all(count <= CONTRACT.widest_step for count, _ in target(session).steps), "a chunk gives one row of logits"
    assert sum(count for count, _ in target(session).steps) == length - 1
    check_invariant(session._context)


@pytest.mark.parametrize("kind", [FakeDecoder, StatefulDecoder])
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_what_comes_before_and_after_makes_no_difference(tmp_path: Path, cache: int, kind: Any) -> None:
    """Generating after a score and scoring after an answer, of prompts that share some of their tokens or none."""
    session = fake_session(tmp_path, kind(seed=1), FakeDecoder(seed=1, noise=0.5), prompt_cache_bytes=cache)
    generator = np.random.default_rng(5)
    base = prompt_of(24)
    for turn in range(60):
        prompt = base[: int(generator.integers(1, 24))] + prompt_of(int(generator.integers(0, 9)), turn)
        count, scores, salt = int(generator.integers(0, 9)), bool(generator.integers(2)), generator.choice(["a", "b"])
        likeliest = int(generator.integers(2)) if scores or not count else None
        found = session.generate(prompt, max_new_tokens=count, prompt_logprobs=likeliest, cache_salt=str(salt))
        assert found.tokens == greedy_tokens(target(session), prompt, count)
        if likeliest is None:
            assert found.prompt_logprobs == ()
        else:
            assert told(found.prompt_logprobs) == expected(target(session), prompt, likeliest)
        check_invariant(session._context)


def test_only_what_was_not_scored_before_is_read_again(session: Session) -> None:
    """As an evaluation asks: one context, several continuations. Rows of other requests have no logits."""
    context, steps = prompt_of(20), target(session).steps
    session.generate(context, max_new_tokens=1)
    del steps[:]
    first = session.score([*context, 1, 2])
    assert first.statistics.reused_tokens == 0
    assert sum(count for count, _ in steps) == 21
    del steps[:]
    second = session.score([*context, 3, 2, 4])
    check_invariant(session._context)
    assert told(second.prompt_logprobs) == expected(target(session), [*context, 3, 2, 4])
    if not target(session).has_states:  # those go back no further than a step
        assert second.statistics.reused_tokens == 19, "the row of the last shared token is read for its logits"
        assert steps[0] == (3, 19)
    del steps[:]
    assert session.score([*context, 3, 2, 4]).prompt_logprobs == second.prompt_logprobs
    assert steps == []
    session.score([*context, 3, 2, 4], likeliest=1)  # of which nothing was kept
    assert sum(count for count, _ in steps) == 22


def test_another_salt_shares_nothing(session: Session) -> None:
    prompt = prompt_of(20)
    for salt in ("a", "b", None, "b"):
        assert session.score(prompt, cache_salt=salt).statistics.reused_tokens == 0
    session.generate(prompt, cache_salt="c", max_new_tokens=1)  # rows of its own, and scores of another
    assert session.score(prompt, cache_salt="c").statistics.reused_tokens == 0


@pytest.mark.parametrize("after", range(1, 4))
def test_cancelled_between_two_passes(session: Session, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, decoder = prompt_of(30), target(session)
    session.score(prompt)
    session.generate(prompt_of(30, 1), max_new_tokens=1)
    step, passes = decoder.step, 0

    def cancels(tokens: Sequence[int], position: int) -> Logits:
        nonlocal passes
        passes += 1
        if passes == after:
            session.cancel()
        return step(tokens, position)

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "step", cancels)
        found = session.score(prompt)
    assert (found.finish_reason, found.prompt_logprobs, passes) == ("cancelled", (), after)
    check_invariant(session._context)
    session.generate(prompt, max_new_tokens=2)  # rows that nobody scored
    assert told(session.score(prompt).prompt_logprobs) == expected(decoder, prompt)


def test_a_stream_has_them_in_its_first_chunk_alone(session: Session) -> None:
    prompt = prompt_of(11)
    with session.stream(prompt, max_new_tokens=9, prompt_logprobs=0, logprobs=0, stop_token_ids=()) as stream:
        first, *others = stream
    assert told(first.prompt_logprobs) == expected(target(session), prompt)
    assert first.tokens
    assert others
    assert not any(chunk.prompt_logprobs for chunk in others)


def test_logits_that_are_no_numbers(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    logits_after = target(session).logits_after
    spoiled: Any = lambda seen: logits_after(seen) * (math.nan if len(seen) == 8 else 1)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(target(session), "logits_after", spoiled)
        with refused(EngineError, "position 7", "nan"):
            session.score(prompt_of(20))
    assert told(session.score(prompt_of(20)).prompt_logprobs) == expected(target(session), prompt_of(20))


def test_what_cannot_be_scored(session: Session) -> None:
    with refused(LongPromptError, MOST + 1, field="prompt"):
        session.score(prompt_of(MOST + 1))
    for empty in ([], ""):
        with refused(PromptError, field="prompt"):
            session.score(empty)
    for count, options, least in ((0, {}, 1), (-2, {}, 1), (-3, {"prompt_logprobs": 0}, 0)):
        with refused(ParameterError, count, least, field="max_new_tokens"):
            session.generate([1, 2], max_new_tokens=count, **options)
    for likeliest in (-1, None):
        with refused(ParameterError, field="likeliest"):
            session.score([1, 2], likeliest=likeliest)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 2, 9, 17, 30])
def test_a_draft_that_reads_hidden_states_gets_them(length: int) -> None:
    decoder, draft = hidden_pair()
    context = Context(
        CachedDecoder(decoder, 8, widest=CONTRACT.widest_step),
        {"head": draft},
        "head",
        taps=decoder.taps,
        readers=[draft],
    )
    scores, prompt = Scores(), np.random.default_rng(length).integers(0, 9, length).tolist()
    for tokens in (prompt, [*prompt, 1, 2, 3]):
        context.start(tokens)
        scores.resume(context, 0)
        assert told(scores.complete(context)) == expected(decoder, tokens)
        check_rows(context)
        assert draft.reach == max(0, len(tokens) - 1)


@pytest.mark.slow
def test_equal_to_transformers(pair: Pair, built: Path) -> None:
    import torch
    from specexport import load
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target)
    prompt = [7, 3, 200, 41, 9, *range(20, 50)]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([prompt])).logits[0].double(), -1)
    with load(built) as session:
        found = session.score(prompt, likeliest=2).prompt_logprobs
    assert [one.logprob for one in found] == pytest.approx(
        [float(logprobs[place, token]) for place, token in enumerate(prompt[1:])], abs=2e-4
    )
    assert [dict(one.likeliest) for one in found] == [
        pytest.approx({int(token): float(row[token]) for token in row.topk(2).indices}, abs=2e-4)
        for row in logprobs[:-1]
    ]
