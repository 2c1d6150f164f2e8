"""Which connection ends so that a new one gets a place."""

from __future__ import annotations

from dataclasses import dataclass

from specexport.serve.http.connection import least_needed


@dataclass
class Held:
    peer: str = "a"
    since: float = 0.0
    stage: int = 0
    kept: bool = False


def test_the_oldest_that_waits_for_a_request() -> None:
    oldest = Held(since=1)
    assert least_needed([Held(since=3), oldest, Held(since=2)]) is oldest


def test_before_those_whose_answers_are_not_read_and_probes() -> None:
    idle, unread, probe = Held(since=3), Held(stage=1, since=2), Held(stage=2, since=1)
    found = [probe, unread, idle]
    for expected in (idle, unread, probe):
        assert least_needed(found) is expected
        found.remove(expected)


def test_an_address_that_has_many_takes_nobody_elses() -> None:
    own = [Held("many", since=10 + place) for place in range(3)]
    assert least_needed([Held("other", since=1), Held("third", since=2), *own]) is own[0]
    busy = [Held("many", stage=2, since=10 + place) for place in range(3)]
    assert least_needed([Held("other", since=1), *busy]) is busy[0]


def test_what_is_kept_neither_ends_nor_counts() -> None:
    answered = [Held("many", kept=True) for _ in range(3)]
    others = [Held("two"), Held("two", since=1), Held("many", since=0)]
    assert least_needed([*answered, *others]) is others[0]
    assert least_needed(answered) is None
    assert least_needed([]) is None
