"""A bounded queue that serves keys in turn: FIFO within a key, and no key waits for all requests of another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import zip_longest
from typing import Generic, TypeVar

T = TypeVar("T")


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
