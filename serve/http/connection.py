"""A connection of `specexport serve`: how long it may take for a head, and which one makes room.

So a probe never waits for a place, whoever holds the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from .access import ADMITTED

HEAD_TIMEOUT = 30.0


class Connection(H11Protocol):
    """Closed if it does not finish the head of a request, the first or a later one. The newest over `most` gets the
    place of another one.
    """

    most = 1
    since = 0.0  # its loop's time when it began to wait for a head
    closed_for_others = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        make_room(self.connections, self.most, self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def close_for_others(self) -> None:
        self.closed_for_others = True
        self.transport.abort()

    def _await_head(self) -> None:
        self.since = self.loop.time()
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        if not self.busy and not self.transport.is_closing():
            self.transport.close()

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        begun: Any = self.cycle
        return begun is not None and not begun.response_complete

    @property
    def kept(self) -> bool:
        """Whether its request is one of those that count: only they may keep a place."""
        return self.busy and bool(self.cycle.scope["state"].get(ADMITTED))

    @property
    def stage(self) -> int:
        """0: it has no request; 1: its last answer is not read yet; 2: a request is open."""
        return 2 if self.busy else int(self.transport.get_write_buffer_size() > 0)

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else ""


def make_room(connections: set[Any], most: int, newest: Connection | None = None) -> None:
    """Close as many as are above `most`; the newest only if all others must stay."""
    if len(connections) <= most:
        return
    there = [one for one in connections if not one.closed_for_others]
    for _ in range(len(there) - most):
        found = least_needed(one for one in there if one is not newest) or newest
        if found is None:
            return
        there.remove(found)
        found.close_for_others()


class Held(Protocol):
    """kept: it must stay. stage: how far its request is; lower ones end first. since: when it came to wait."""

    @property
    def kept(self) -> bool: ...
    @property
    def peer(self) -> str: ...
    @property
    def stage(self) -> int: ...
    @property
    def since(self) -> float: ...


H = TypeVar("H", bound=Held)


def least_needed(connections: Iterable[H]) -> H | None:
    """One of the address that has the most, so that nobody takes the places of others; of these the oldest that waits
    for a request. None if all must stay.
    """
    found = [one for one in connections if not one.kept]
    each = Counter(one.peer for one in found)
    return min(found, key=lambda one: (-each[one.peer], one.stage, one.since), default=None)
