"""The session for asyncio, in process: no sockets. The double's gate says when passes go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.errors import ParameterError, QueueError, SessionClosedError
from specexport.serve import AsyncSession
from specexport.serve.engine.job import Job
from specexport.serve.engine.thread import EngineThread
from support.refusals import refused
from support.serving import PATIENCE, SlowDecoder, slow_session, wait_for

CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
Use = Callable[[AsyncSession, SlowDecoder], Awaitable[Any]]


def run(root: Path, use: Use, **options: Any) -> Any:
    """`use` within an event loop; whatever it leaves behind is closed, and the engine thread ends."""

    async def main() -> Any:
        session, decoder = slow_session(root, CONTRACT)
        with session:
            async with AsyncSession(session, **options) as sessions:
                try:
                    return await asyncio.wait_for(use(sessions, decoder), 30)
                finally:
                    decoder.gate.set()

    found = asyncio.run(main())
    wait_for(lambda: not any(thread.name == "specexport-engine" for thread in threading.enumerate()))
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_the_engine_thread_prepares_what_it_runs(tmp_path: Path) -> None:
    """A library may keep something for each thread; rows that its passes write over are forgotten before."""
    session, decoder = slow_session(tmp_path, CONTRACT)
    decoder.gate.set()
    threads: list[str] = []

    def warm_up() -> None:
        assert not session._context.tokens
        threads.append(threading.current_thread().name)

    session.engine = replace(session.engine, warm_up=warm_up)
    session._context.tokens = [1]
    thread = EngineThread(session, 1, 1, 1.0)
    thread.prepare()
    assert threads == ["specexport-engine"]
    assert not session._context.tokens
    thread.stop()
    session.close()
    other = EngineThread(session, 1, 1, 1.0)
    with refused(SessionClosedError):
        other.prepare()
    other.stop()


def test_it_gives_what_the_session_gives(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, _: SlowDecoder) -> None:
        found = await sessions.generate("Hello", max_new_tokens=20, drafter="ngram")
        chunks = [chunk async for chunk in sessions.stream("Hello", max_new_tokens=20)]
        expected = sessions.session.generate("Hello", max_new_tokens=20)
        assert found.tokens == expected.tokens
        assert found.text == expected.text == "".join(chunk.text for chunk in chunks)
        assert chunks[-1].finish_reason == "length"
        job = sessions.submit("Hello", max_new_tokens=20)
        await job.started()
        last = [chunk async for chunk in job.chunks()][-1]
        assert sum(seconds for seconds, _ in job.rounds) <= last.statistics.total_seconds

    run(tmp_path, use)


def test_a_reader_that_stopped_reading_loses_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.serve.engine.job.MAX_UNREAD", 3)

    async def use(sessions: AsyncSession, _: SlowDecoder) -> None:
        job = sessions.submit("Hello", max_new_tokens=100)
        await until(lambda: job.cancelled)

    run(tmp_path, use)


def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        sessions.thread.starts_in = lambda job=None: 2.5  # type: ignore[method-assign]
        running = sessions.submit([1, 2], max_new_tokens=2, key="a")
        await until(lambda: sessions.thread.running == 1)
        waiting = [sessions.submit([1, 2], max_new_tokens=2, key="a") for _ in range(2)]
        with refused(QueueError, code="too_many_requests") as caught:
            sessions.submit([1], key="a")
        assert 1 <= caught.value.retry_after <= 60
        waiting.append(sessions.submit([1, 2], max_new_tokens=2, key="b"))
        with refused(QueueError, "3", code="queue_full"):
            sessions.submit([1], key="c")
        decoder.gate.set()
        for job in (running, *waiting):
            assert [chunk.finish_reason async for chunk in job.chunks()][-1] == "length"

    run(tmp_path, use, max_queue=3, max_queue_per_key=2)


def test_a_burst_that_finds_nothing_running(tmp_path: Path) -> None:
    """One runs and one waits, whether or not the thread has taken the first one up when the second one comes."""

    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        for _ in range(20):
            decoder.gate.clear()
            jobs = [sessions.submit([1, 2], max_new_tokens=2) for _ in range(2)]
            with refused(QueueError, code="queue_full"):
                sessions.submit([1])
            decoder.gate.set()
            for job in jobs:
                assert [chunk.finish_reason async for chunk in job.chunks()][-1] == "length"

    run(tmp_path, use, max_queue=1)


def test_one_that_waits_and_leaves_costs_nothing_and_stops_nobody(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        first = asyncio.create_task(sessions.generate("first", max_new_tokens=6))
        await until(lambda: sessions.thread.running == 1)
        second = asyncio.create_task(sessions.generate("second", max_new_tokens=6))
        third = asyncio.create_task(sessions.generate("third", max_new_tokens=6))
        await until(lambda: sessions.thread.waiting == 2)
        second.cancel()
        await until(lambda: sessions.thread.waiting == 1)  # although nothing runs
        decoder.gate.set()
        assert len((await first).tokens) == len((await third).tokens) == 6
        with pytest.raises(asyncio.CancelledError):
            await second
        fed = sum(tokens for tokens, _ in decoder.steps)
        assert fed == len("first") + 5 + len("third") + 5  # nothing of the second

    run(tmp_path, use)


def test_one_that_runs_and_leaves_ends_within_a_round(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.delay = 0.002
        async with aclosing(sessions.stream("Hello", max_new_tokens=200)) as stream:
            async for _ in stream:
                break
        rounds = len(decoder.steps)
        await until(lambda: sessions.thread.running == 0)
        assert len(decoder.steps) <= rounds + 2

    run(tmp_path, use)


def test_one_that_leaves_in_a_long_prompt_ends_within_a_chunk(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        task = asyncio.create_task(sessions.generate([5] * 200, max_new_tokens=6))
        await until(lambda: sessions.thread.running == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0.02)
        decoder.gate.set()
        await until(lambda: sessions.thread.running == 0)
        assert len(decoder.steps) <= 1  # of 25
        assert len((await sessions.generate("next", max_new_tokens=3)).tokens) == 3

    run(tmp_path, use)


def test_who_has_just_got_its_turn_keeps_it(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        job = sessions.submit("first", max_new_tokens=2)
        await until(lambda: sessions.thread.running == 1)
        job.expire(QueueError("queue_timeout", "the request waited too long", 1))
        decoder.gate.set()
        assert await sessions.started(job)
        assert [chunk async for chunk in job.chunks()][-1].finish_reason == "length"

    run(tmp_path, use)


def test_who_waits_too_long_is_refused(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        first = asyncio.create_task(sessions.generate("first", max_new_tokens=2))
        await until(lambda: sessions.thread.running == 1)
        sessions.queue_timeout = 0.05  # not before: on a busy host the first one may wait as long
        sessions.thread.starts_in = lambda job=None: 0.0  # type: ignore[method-assign]
        with refused(QueueError, "0.05", code="queue_timeout"):
            await sessions.generate("second", max_new_tokens=2)
        job = sessions.submit("third", max_new_tokens=2)
        job.created -= 1.0
        with pytest.raises(QueueError):
            await sessions.started(job, 0.01)
        decoder.gate.set()
        assert len((await first).tokens) == 2

    run(tmp_path, use)


def test_a_wait_is_estimated_from_what_is_ahead(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        thread = sessions.thread
        thread._usual = 1000.0
        assert thread.starts_in() == 0.0
        decoder.gate.clear()
        running = sessions.submit([1, 2], max_new_tokens=2)
        await until(lambda: thread.running == 1)
        waiting = [sessions.submit([1, 2], max_new_tokens=2, key=key) for key in ("a", "a", "b")]
        first = thread.starts_in(waiting[0])
        assert 1000 - PATIENCE < first <= 1000
        for job, ahead in ((waiting[2], 1000), (waiting[1], 2000), (None, 3000)):  # keys take turns
            assert thread.starts_in(job) - first == pytest.approx(ahead, abs=PATIENCE)
        assert thread.retry_after() == 60  # longer ones are ignored
        assert running.started_at is not None
        running.started_at -= 1500.0  # longer than usual, so expected to take as long again
        assert 1500 <= thread.starts_in(waiting[0]) < 1500 + PATIENCE
        decoder.gate.set()
        for job in (running, *waiting):
            assert [chunk.finish_reason async for chunk in job.chunks()][-1] == "length"
        assert thread.starts_in() == 0.0
        await until(lambda: thread._usual is not None and thread._usual < 900)  # these were faster

    run(tmp_path, use, queue_timeout=1e9)


def test_while_nothing_is_known_all_are_expected_to_take_as_long_as_the_running_one(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        thread = sessions.thread
        decoder.gate.clear()
        jobs = [sessions.submit([1, 2], max_new_tokens=2)]
        await until(lambda: thread.running == 1)
        jobs += [sessions.submit([1, 2], max_new_tokens=2) for _ in range(5)]
        assert thread.retry_after() >= 6  # a second each, at least
        running = jobs[0]
        assert running.started_at is not None
        running.started_at -= 100.0
        assert 100 <= thread.starts_in(jobs[1]) < 100 + PATIENCE
        assert 1100 <= thread.starts_in() < 1100 + 11 * PATIENCE
        decoder.gate.set()
        for job in jobs:
            assert [chunk.finish_reason async for chunk in job.chunks()][-1] == "length"
        await until(lambda: thread._usual is not None)
        assert thread.retry_after() == 1

    run(tmp_path, use)


def test_who_cannot_start_in_time_is_refused_at_once(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        running = sessions.submit([1, 2], max_new_tokens=2)
        await until(lambda: sessions.thread.running == 1)
        sessions.queue_timeout = 30.0
        sessions.thread.starts_in = lambda job=None: 31.5  # type: ignore[method-assign]
        with refused(QueueError, "30", code="queue_timeout") as caught:
            sessions.submit([1, 2], max_new_tokens=2)
        assert caught.value.retry_after == 32
        assert sessions.thread.waiting == 0
        following = sessions.submit([1, 2], max_new_tokens=2, again=True)  # the next prompt of a list
        decoder.gate.set()
        for job in (running, following):
            assert [chunk.finish_reason async for chunk in job.chunks()][-1] == "length"

    run(tmp_path, use)


@pytest.mark.parametrize("options", [{}, {"num_draft_tokens": 99}], ids=["served", "refused"])
def test_whoever_hears_the_end_finds_the_engine_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    async def use(sessions: AsyncSession, _: SlowDecoder) -> None:
        def deliver(job: Job, event: object) -> None:
            running.append(sessions.thread.running)
            original(job, event)  # type: ignore[arg-type]

        running: list[int] = []
        original = Job.deliver
        monkeypatch.setattr(Job, "deliver", deliver)
        with suppress(ParameterError):
            await sessions.generate("Hello", max_new_tokens=2, **options)
        assert running[-1] == 0
        assert sum(running) == len(running) - 1

    run(tmp_path, use)


def test_an_engine_that_fails_fails_one_request(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        step, decoder.step = decoder.step, lambda tokens, position: 1 / 0  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            await sessions.generate("Hello", max_new_tokens=3)
        decoder.step = step  # type: ignore[method-assign]
        assert sessions.thread.alive
        assert sessions.thread.failed_in_a_row == 1
        assert len((await sessions.generate("Hello", max_new_tokens=3)).tokens) == 3
        assert sessions.thread.failed_in_a_row == 0

    run(tmp_path, use)


def test_drain_takes_nothing_new_and_lets_the_rest_end(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.gate.clear()
        tasks = [asyncio.create_task(sessions.generate(f"{n}", max_new_tokens=20)) for n in range(3)]
        await until(lambda: sessions.thread.running == 1 and sessions.thread.waiting == 2)
        drained = asyncio.create_task(sessions.drain(20))
        await until(lambda: sessions.thread.draining)
        with refused(QueueError, code="shutting_down"):
            await sessions.generate("late")
        decoder.gate.set()
        assert await drained
        assert [len(task.result().tokens) for task in tasks] == [20, 20, 20]

    run(tmp_path, use)


def test_what_a_drain_cannot_wait_for_ends_with_an_error(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        decoder.delay = 0.01
        tasks = [asyncio.create_task(sessions.generate(f"{n}", max_new_tokens=200)) for n in range(3)]
        await until(lambda: sessions.thread.waiting == 2)
        assert not await sessions.drain(0.05)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [getattr(error, "code", None) for error in errors] == ["shutting_down"] * 3

    run(tmp_path, use)


def test_a_drain_does_not_wait_for_what_it_cut_off(tmp_path: Path) -> None:
    """A request between two of its jobs, whose client reads nothing; it cannot go on later."""

    async def use(sessions: AsyncSession, _: SlowDecoder) -> None:
        with sessions.thread.several_jobs():
            assert not await sessions.drain(0.0)
            with refused(QueueError, code="shutting_down"):
                sessions.submit([5], again=True)

    run(tmp_path, use)


def test_a_stall_shows(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        thread = sessions.thread
        assert thread.stalled_for() == 0.0
        decoder.gate.clear()
        task = asyncio.create_task(sessions.generate([5] * 100, max_new_tokens=30))
        await until(lambda: thread.running == 1)
        await until(lambda: thread.stalled_for() > 0.05)
        decoder.gate.set()
        await task
        assert thread.stalled_for() == 0.0
        thread._running = job = SimpleNamespace(stream=SimpleNamespace(steps=1))  # type: ignore[assignment]
        thread.stalled_for()
        thread._seen_at -= 9.0
        assert thread.stalled_for() >= 9.0
        job.stream.steps = 2
        assert thread.stalled_for() < 9.0
        thread._running = None

    run(tmp_path, use)


def test_another_key_finds_no_rows(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, _: SlowDecoder) -> None:
        async def reused(key: str) -> int:
            return (await sessions.generate("Hello you", max_new_tokens=1, key=key)).statistics.reused_tokens

        assert [await reused(key) for key in ("a", "a", "b", "b", "a")] == [0, 8, 0, 8, 0]

    run(tmp_path, use)


def test_one_that_leaves_while_it_is_being_checked_never_begins(tmp_path: Path) -> None:
    async def use(sessions: AsyncSession, decoder: SlowDecoder) -> None:
        checked, whole = threading.Event(), sessions.session.stream

        def slow(*arguments: Any, **options: Any) -> Any:
            assert checked.wait(30)
            return whole(*arguments, **options)

        sessions.session.stream = slow  # type: ignore[method-assign]
        job = sessions.submit([1, 2, 3], max_new_tokens=50)
        await until(lambda: sessions.thread.running == 1)
        job.cancel()
        checked.set()
        await until(lambda: sessions.thread.running == 0)
        assert decoder.steps == []

    run(tmp_path, use)
