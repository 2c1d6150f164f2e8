from __future__ import annotations

import random

import pytest
from specexport.errors import QueueError
from specexport.serve.engine.fair_queue import FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    found = []
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


OF_KEY = "too_many_requests"


def test_keys_take_turns_and_each_is_first_in_first_out() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(item[0], item)
    assert list(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert drained(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert len(queue) == 0


def test_a_key_that_comes_late_waits_for_no_more_than_one_of_each_other() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    for item in ("a1", "a2", "a3"):
        queue.put("a", item)
    assert queue.pop() == "a1"
    queue.put("b", "b1")
    assert drained(queue) == ["a2", "b1", "a3"]


def test_both_bounds() -> None:
    queue: FairQueue[str] = FairQueue(3, 2)
    queue.put("a", "a1")
    queue.put("a", "a2")
    with pytest.raises(QueueError) as full:
        queue.put("a", "a3")
    assert full.value.code == OF_KEY
    queue.put("b", "b1")
    with pytest.raises(QueueError) as full:
        queue.put("c", "c1")
    assert full.value.code == "queue_full"
    assert queue.remove("a", "a1")
    assert not queue.remove("a", "a1")
    assert not queue.remove("nobody", "a1")
    queue.put("c", "c1")
    assert drained(queue) == ["a2", "b1", "c1"]


def test_where_nothing_runs_the_next_one_does_not_wait() -> None:
    queue: FairQueue[str] = FairQueue(2, 1)
    for item in ("a1", "a2", "b1"):
        queue.put(item[0], item, idle=True)
    for key in ("a", "b", "c"):  # the key's share; the queue
        with pytest.raises(QueueError) as full:
            queue.put(key, "no", idle=True)
        assert full.value.code == "queue_full"
    assert queue.pop() == "a1"  # runs
    for key in ("b", "c"):
        with pytest.raises(QueueError) as full:
            queue.put(key, "no")
        assert full.value.code == "queue_full"
    assert queue.remove("b", "b1")
    with pytest.raises(QueueError) as full:
        queue.put("a", "a3")
    assert full.value.code == OF_KEY
    queue.put("b", "b2")
    assert drained(queue) == ["a2", "b2"]


def test_random_histories_lose_nothing_and_starve_nobody() -> None:
    chance = random.Random(1)
    for _ in range(50):
        queue: FairQueue[tuple[str, int]] = FairQueue(12, 5)
        waiting: dict[str, list[int]] = {key: [] for key in "abcd"}
        served: list[str] = []
        for number in range(200):
            key = chance.choice("abcd")
            if chance.random() < 0.55:
                full = len(queue) >= 12
                if full or len(waiting[key]) >= 5:
                    with pytest.raises(QueueError) as caught:
                        queue.put(key, (key, number))
                    assert (caught.value.code == OF_KEY) is not full
                else:
                    queue.put(key, (key, number))
                    waiting[key].append(number)
            elif chance.random() < 0.2 and waiting[key]:
                gone = chance.choice(waiting[key])
                assert queue.remove(key, (key, gone))
                waiting[key].remove(gone)
            elif (item := queue.pop()) is not None:
                assert item[1] == waiting[item[0]].pop(0)
                served.append(item[0])
            assert len(queue) == sum(map(len, waiting.values())) == len(list(queue))
