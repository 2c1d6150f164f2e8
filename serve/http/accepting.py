"""Accepts connections, as many as `ulimit -n` leaves room for.

Of each that finds no descriptor asyncio's server logs a traceback, thousands a second.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from ...errors import EngineError

LOG = logging.getLogger("specexport.serve")
BACKLOG = 2048
AT_ONCE = 4  # then those are read: a flood must not take a place before its request was seen
PAUSE = 0.1  # seconds until it tries again
LOG_INTERVAL = 60.0  # seconds
SPARE_CONNECTIONS = 16  # besides two for each open request: a keep-alive and a health check
SPARE_FILES = 24  # for libraries, and for connections that are not counted yet, or closed and not gone


class Acceptor:
    """Accepts on `listening` until `close`. make_room: asked to free so many descriptors when there are none left."""

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], make_room: Callable[[int], object]
    ) -> None:
        """Starts at once, on the running loop."""
        self._listening, self._protocol, self._make_room = listening, protocol, make_room
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[object]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._told_at = -LOG_INTERVAL
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _watch(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left, of this process or of the system
                self._pause(error)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # it left
            connection.close()

    def _pause(self, error: OSError) -> None:
        """The socket would report the same connection for ever."""
        self._loop.remove_reader(self._listening)
        self._make_room(AT_ONCE)
        self._retry = self._loop.call_later(PAUSE, self._watch)
        if monotonic() - self._told_at >= LOG_INTERVAL:
            self._told_at = monotonic()
            LOG.warning("cannot accept connections: %s (ulimit -n); trying again", error.strerror or error)


def connections_of(requests: int) -> int:
    """How many connections a server with so many open requests holds."""
    return 2 * requests + SPARE_CONNECTIONS


def affordable(requests: int) -> int:
    """How many requests, `requests` at most, can be open at once. The soft limit is raised as far as that needs.

    Raises `EngineError` if there is no room for any.
    """
    taken = _open_files() + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = taken + connections_of(requests)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return requests
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if raised > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):  # a system's own limit
            pass
    found = (soft - taken - SPARE_CONNECTIONS) // 2
    if found < 1:
        least = taken + connections_of(1)
        raise EngineError(f"this process may open {soft} files; a server needs {least}: raise the limit (ulimit -n)")
    return min(found, requests)


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())
