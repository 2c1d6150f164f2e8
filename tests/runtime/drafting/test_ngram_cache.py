"""Drafts from earlier answers: what is found, how likely it is said to be, and what is apart or forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.runtime.drafting import ngram_cache
from specexport.runtime.drafting.ngram_cache import AnswerLookup, NgramCache
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.doubles import FakeDecoder, fake_session

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return fake_session(tmp_path, FakeDecoder(vocab_size=40), None)


def remembering(*answers: list[int]) -> NgramCache:
    cache = NgramCache()
    for answer in answers:
        cache.add(answer, 0, None)
    return cache


def find(cache: NgramCache, tokens: list[int], count: int = 8, drafted: tuple[int, ...] = ()) -> list[int]:
    return AnswerLookup(cache, None).find(tokens, count, drafted)


def test_an_answer_is_continued_to_its_end() -> None:
    cache = remembering([1, 2, 3, 4, 5, 6])
    assert find(cache, [9, 1, 2, 3]) == [4, 5, 6]
    assert find(cache, [9, 1, 2, 3], 2) == [4, 5]
    assert find(cache, [9, 1], 8, (2, 3)) == find(cache, [9, 9, 1, 2], 8, (3,)) == [4, 5, 6]
    assert find(cache, [2, 3]) == find(cache, [3, 2, 1]) == find(cache, []) == []


def test_a_prompt_is_not_remembered_but_leads_to_its_answer() -> None:
    cache = NgramCache()
    cache.add([1, 2, 3, 4, 5, 6], 4, None)
    assert find(cache, [1, 2, 3]) == []
    assert find(cache, [2, 3, 4]) == [5, 6]


def test_the_most_frequent_follower_wins_then_the_most_recent() -> None:
    assert find(remembering([1, 2, 3, 7], [1, 2, 3, 8]), [1, 2, 3]) == [8]
    assert find(remembering([1, 2, 3, 7], [1, 2, 3, 7], [1, 2, 3, 8]), [1, 2, 3]) == [7]
    old = [[1, 2, 3, 7]] * 5 + [[1, 2, 3, 8]] * 5  # of eight, three are 7
    assert find(remembering(*old), [1, 2, 3]) == [8]


def odds(cache: NgramCache) -> float:
    lookup = AnswerLookup(cache, None)
    lookup.find([1, 2, 3], 1)
    return lookup.odds[0]


def test_what_followed_more_often_is_likelier() -> None:
    assert odds(remembering([1, 2, 3, 7])) == pytest.approx(2.0)  # 1 of 1: 2/3
    assert odds(remembering([1, 2, 3, 7], [1, 2, 3, 7])) == pytest.approx(4.0)
    assert odds(remembering(*[[1, 2, 3, 7]] * 3, [1, 2, 3, 8])) == pytest.approx(2.0)  # 3 of 4, not yet judged


def test_the_odds_follow_what_came_of_them() -> None:
    good, bad = NgramCache(), NgramCache()
    for number in range(10, 20):  # each n-gram twice: what followed once is right the second time, or never
        good.add([number, 2, 3, 5], 0, None)
        good.add([number, 2, 3, 5], 0, None)
        bad.add([number, 2, 3, 5], 0, None)
        bad.add([number, 2, 3, 6], 0, None)
    for cache in (good, bad):
        cache.add([1, 2, 3, 7], 0, None)
    assert odds(good) == pytest.approx((8 * 2 / 3 + 10) / (8 / 3))
    assert odds(bad) == pytest.approx((8 * 2 / 3) / (8 / 3 + 10))


def test_old_judgements_fade() -> None:
    cache = NgramCache()
    for number in range(1000, 3000):
        for token in (5, 6 if number < 2000 else 5):
            cache.add([number, 2, 3, token], 0, None)
    cache.add([1, 2, 3, 7], 0, None)
    assert odds(cache) > 20


def test_the_odds_stay_finite_however_long_nothing_is_wrong() -> None:
    cache = remembering(*[[1, 2, 3, 7]] * 70_000)
    assert 50 < odds(cache) < 1e4


def test_salts_are_apart() -> None:
    cache = NgramCache()
    cache.add([1, 2, 3, 4], 0, "a")
    assert AnswerLookup(cache, "a").find([1, 2, 3], 1) == [4]
    assert AnswerLookup(cache, "b").find([1, 2, 3], 1) == AnswerLookup(cache, None).find([1, 2, 3], 1) == []


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_cache, "GENERATION", 100)
    cache = NgramCache()
    for number in range(1000):
        cache.add([number, 2, 3, 4], 0, None)
    known = [number for number in range(1000) if find(cache, [number, 2, 3])]
    assert 100 <= len(known) < 200
    assert known == list(range(1000 - len(known), 1000))
    oldest = known[0]  # of the older generation: its followers come along
    cache.add([oldest, 2, 3, 5], 0, None)
    likeliest = cache.next([oldest, 2, 3], None)
    assert likeliest is not None
    assert likeliest[0] == 5
    assert likeliest[1] == pytest.approx(2 / 3)  # 1 of 2


def test_a_second_time_an_answer_is_looked_up_until_reset(session: Session) -> None:
    plain = session.generate(PROMPT, max_new_tokens=30, speculate=False)
    again = session.generate(PROMPT, max_new_tokens=30)
    assert again.tokens == plain.tokens
    assert again.statistics.accepted >= 20
    session.reset()
    assert session.generate(PROMPT, max_new_tokens=30).statistics.accepted < again.statistics.accepted


def test_another_salt_and_a_seed_look_up_nothing_of_others(session: Session) -> None:
    ways = ({"cache_salt": "b"}, {"temperature": 1.0, "seed": 5})
    alone = []
    for way in ways:
        session.reset()
        alone.append(session.generate(PROMPT, max_new_tokens=30, num_draft_tokens=3, drafter="ngram", **way))
    session.reset()
    for _ in range(3):
        session.generate(PROMPT, max_new_tokens=30)
        session.generate(PROMPT, max_new_tokens=30, temperature=1.0, seed=5)
    for way, before in zip(ways, alone, strict=True):
        after = session.generate(PROMPT, max_new_tokens=30, num_draft_tokens=3, drafter="ngram", **way)
        assert after.tokens == before.tokens
        assert after.statistics.drafted_by_position == before.statistics.drafted_by_position


def test_a_stream_that_is_not_read_on_remembers_its_own_answer(session: Session) -> None:
    """Its generator ends when it is collected, when another request may have the context."""
    stream = session.stream(PROMPT, max_new_tokens=30, cache_salt="a")
    tokens: list[int] = []
    while not (chunk := next(stream)).finish_reason:
        tokens += chunk.tokens
    first = [*PROMPT, *tokens, *chunk.tokens]
    assert AnswerLookup(session.answers, "a").find(first[:8], 8) == first[8:16]
    other = [7, 8, 9, 10]
    other += session.generate(other, max_new_tokens=30, cache_salt="b").tokens
    del stream, chunk
    known = [place for place in range(4, 30) if AnswerLookup(session.answers, "a").find(other[:place], 1)]
    assert len(known) < 5  # other than by chance


def test_seeded() -> None:
    assert SamplingParameters(temperature=1.0, seed=0).seeded
    assert not SamplingParameters(temperature=0.0, seed=0).seeded
    assert not SamplingParameters(temperature=1.0).seeded


def test_a_request_cancelled_before_it_began_is_not_remembered(session: Session) -> None:
    """Its caches still hold the tokens of the one before, which may have had another salt."""
    session.generate(PROMPT, max_new_tokens=30, cache_salt="a")
    stream = session.stream(PROMPT[:2], max_new_tokens=30, cache_salt="b")
    stream.cancel()
    assert [chunk.finish_reason for chunk in stream] == ["cancelled"]
    key = session.generate(PROMPT, max_new_tokens=1, speculate=False, cache_salt="a").tokens
    assert AnswerLookup(session.answers, "a").find([*PROMPT, *key], 8)
    assert not AnswerLookup(session.answers, "b").find([*PROMPT, *key], 8)
