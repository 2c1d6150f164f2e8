"""Threads for work that requests need before they wait for the engine: a few, with keys in turn and a limit for each
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from ...errors import QueueError, SessionClosedError
from .fair_queue import FairQueue, Full

T = TypeVar("T")
RETRY = 1  # seconds


class Workers:
    """`asyncio.to_thread` is not used since it has no limits and no turns: one client could fill it for all."""

    turns_by = "key"  # what keys are, for the text of a refusal

    def __init__(self, name: str, threads: int, most: int, most_per_key: int) -> None:
        """most: tasks that may wait; most_per_key: of one key. Threads start with the first of them."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queue: FairQueue[Callable[[], None]] = FairQueue(most, most_per_key)
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        with self._lock:
            return len(self._queue)

    async def run(self, key: str, work: Callable[[], T]) -> T:
        """Returns or raises what `work` does. If cancelled while it waits, it never begins.

        Raises `QueueError`, and `SessionClosedError` once it was closed.
        """
        found: Future[T] = Future()

        def begin() -> None:
            if found.set_running_or_notify_cancel():
                try:
                    found.set_result(work())
                except BaseException as error:  # raised in the calling task
                    found.set_exception(error)

        with self._lock:
            try:
                self._queue.put(key, begin)
            except Full as full:
                raise self._refusal(full.of_key) from None
        try:
            self._begin_one()
            return await asyncio.wrap_future(found)
        finally:
            with self._lock:
                self._queue.remove(key, begin)

    def close(self) -> None:
        """Accept nothing new; running work continues."""
        self._pool.shutdown(wait=False)

    def _begin_one(self) -> None:
        try:
            self._pool.submit(self._next)
        except RuntimeError:  # it was closed
            raise SessionClosedError("this AsyncSession is closed; make another one") from None

    def _next(self) -> None:
        with self._lock:
            begin = self._queue.pop()
        if begin is not None:
            begin()

    def _refusal(self, of_key: bool) -> QueueError:
        if of_key:
            told = f"too many requests of this {self.turns_by} are waiting; retry in {RETRY} s"
            return QueueError("too_many_requests", told, RETRY)
        return QueueError("queue_full", f"too many requests are waiting; retry in {RETRY} s", RETRY)
