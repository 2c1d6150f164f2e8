"""A bounded queue that serves keys in turn: FIFO within a key, and no key waits for all requests of another.

`Workers` are threads that such a queue feeds, for what requests need before they wait for the engine.
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


class FairQueue(Generic[T]):
    """Not thread-safe: its owner holds a lock. keys_are: what a key stands for, in the text of a refusal.
    retry_after: seconds for whoever is refused.
    """

    def __init__(
        self, most: int, most_per_key: int, keys_are: str = "key", retry_after: Callable[[], int] = lambda: RETRY
    ) -> None:
        self._most, self._most_per_key, self._keys_are, self._retry_after = most, most_per_key, keys_are, retry_after
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()  # the key whose turn it is comes first

    def put(self, key: str, item: T, idle: bool = False, again: bool = False) -> None:
        """Raises `QueueError`. idle: whether nothing runs, so that the one whose turn it is waits for nobody. again:
        the item goes on with one that had its place and its turn, and finds room in any case.
        """
        of_key = self._waiting.get(key, ())
        is_next = idle and key == next(iter(self._waiting), None)
        if not again and len(self) - idle >= self._most:
            wait = self._retry_after()
            raise QueueError("queue_full", f"the queue is full ({len(self)} waiting); retry in {wait} s", wait)
        if not again and len(of_key) - is_next >= self._most_per_key:
            wait = self._retry_after()
            reason = f"too many requests of this {self._keys_are} are waiting; retry in {wait} s"
            raise QueueError("too_many_requests", reason, wait)
        self._waiting.setdefault(key, deque()).append(item)

    def pop(self) -> T | None:
        """The oldest item of the key whose turn it is; that key's next turn comes after all others'."""
        for key, of_key in self._waiting.items():
            item = of_key.popleft()
            if of_key:
                self._waiting.move_to_end(key)
            else:
                del self._waiting[key]
            return item
        return None

    def remove(self, key: str, item: T) -> bool:
        """Returns whether it was waiting."""
        of_key = self._waiting.get(key)
        if of_key is None or item not in of_key:
            return False
        of_key.remove(item)
        if not of_key:
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

    def __init__(self, name: str, threads: int, most: int, most_per_key: int, keys_are: str = "key") -> None:
        """most: tasks that may wait; most_per_key: of one key. Threads start with the first of them."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queue: FairQueue[Callable[[], None]] = FairQueue(most, most_per_key, keys_are)
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        with self._lock:
            return len(self._queue)

    async def run(self, key: str, work: Callable[[], T]) -> T:
        """Returns or raises what `work` does. If cancelled while it waits, it never begins.

        Raises `QueueError`, and `SessionClosedError` once it was closed.
        """
        result: Future[T] = Future()

        def begin() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(work())
                except BaseException as error:  # raised in the calling task
                    result.set_exception(error)

        with self._lock:
            self._queue.put(key, begin)
        try:
            try:
                self._pool.submit(self._run_next)
            except RuntimeError:  # it was closed
                raise SessionClosedError("this AsyncSession is closed; make another one") from None
            return await asyncio.wrap_future(result)
        finally:
            with self._lock:
                self._queue.remove(key, begin)

    def close(self) -> None:
        """Accept nothing new; running work continues."""
        self._pool.shutdown(wait=False)

    def _run_next(self) -> None:
        with self._lock:
            begin = self._queue.pop()
        if begin is not None:
            begin()
