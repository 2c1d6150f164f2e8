"""A bounded queue that serves keys in turn: FIFO within a key, and no key waits for all requests of another.

`Workers` are threads behind such a queue, for what requests need before they wait for the engine.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from threading import Lock
from typing import Generic, TypeVar

from ...errors import QueueError, SessionClosedError

T = TypeVar("T")
RETRY = 1  # seconds


class Full(Exception):  # noqa: N818 (the queue's own answer; callers make an error of it)
    """of_key: whether the key's own share is used up, rather than the whole queue."""

    def __init__(self, of_key: bool) -> None:
        super().__init__("the key's share is used up" if of_key else "the queue is full")
        self.of_key = of_key


class FairQueue(Generic[T]):
    """Not thread-safe: its owner holds a lock."""

    def __init__(self, most: int, most_per_key: int) -> None:
        self._most, self._most_per_key = most, most_per_key
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()  # the key whose turn it is comes first

    def put(self, key: str, item: T, idle: bool = False, again: bool = False) -> None:
        """Raises `Full`. idle: whether nothing runs, so that the one whose turn it is waits for nobody. again: the item
        goes on with one that had its place and its turn, and finds room in any case.
        """
        own = self._waiting.get(key, ())
        is_next = idle and key == next(iter(self._waiting), None)
        if not again and len(self) - idle >= self._most:
            raise Full(of_key=False)
        if not again and len(own) - is_next >= self._most_per_key:
            raise Full(of_key=True)
        self._waiting.setdefault(key, deque()).append(item)

    def pop(self) -> T | None:
        """The oldest item of the key whose turn it is; that key's next turn comes after all others'."""
        for key, own in self._waiting.items():
            item = own.popleft()
            if own:
                self._waiting.move_to_end(key)
            else:
                del self._waiting[key]
            return item
        return None

    def remove(self, key: str, item: T) -> bool:
        """Returns whether it was waiting."""
        own = self._waiting.get(key)
        if own is None or item not in own:
            return False
        own.remove(item)
        if not own:
            del self._waiting[key]
        return True

    def __iter__(self) -> Iterator[T]:
        """In the order of their turns."""
        turns = zip_longest(*map(tuple, self._waiting.values()))
        return (item for turn in turns for item in turn if item is not None)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))


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
