"""An app behind a socket, by uvicorn: from the first request to a shutdown that lets the last one end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import disable_created_metrics
from starlette.applications import Starlette

from ..errors import EngineError, MissingPackageError, QueueError
from . import checks
from .http.access import MAX_HEADERS
from .service import Service

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as error:
    raise MissingPackageError(str(error.name), "serve") from None

LOG = logging.getLogger("specexport.serve")
GRACE = 1.0  # seconds for sending the last bytes once no request runs
HEAD_TIMEOUT = 30.0  # seconds
TICK = 0.05
SOCKET_MODE = 0o600
OPEN_FILES = 10_240  # what a system with an infinite hard limit may still refuse to exceed, as macOS does


@dataclass(frozen=True)
class Listening:
    """Where to listen, and how to shut down. port: 0 for any free one. uds: a Unix socket instead. Times in seconds.

    drain_delay: how long new requests are refused before the socket closes, for load balancers that poll `/ready`.
    drain_timeout: for running requests; those that are left then end with an error. trust_forwarded: a proxy on this
    host gives the client's address in X-Forwarded-For.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    drain_delay: float = 0.0
    drain_timeout: float = 30.0
    trust_forwarded: bool = False

    def check(self) -> None:
        """Raises `ParameterError`, and `EngineError` where nothing can listen, before a model is loaded for it."""
        for name in ("drain_delay", "drain_timeout"):
            checks.seconds(name, getattr(self, name))
        if self.uds is None:
            _bound(self.host, self.port).close()
        elif not self.uds.parent.is_dir():
            raise _refused(str(self.uds), "there is no such folder", "--uds")
        else:
            try:
                _free(self.uds)
            except OSError as error:
                raise _refused(str(self.uds), error.strerror or error, "--uds") from None


class Connection(H11Protocol):
    """Closed if the head of a request, the first or a later one, takes more than `HEAD_TIMEOUT`."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        if not self.busy and not self.transport.is_closing():
            self.transport.close()

    @property
    def busy(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Does nothing: the command handles signals."""
        yield


class Listener:
    """`run` serves until `stop`. `stop` may be called from a signal handler of the event loop; a second call ends it at
    once.
    """

    def __init__(self, app: Starlette, where: Listening) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of the process, which this command owns
        self._service: Service = app.state.service
        self._where = where
        config = uvicorn.Config(
            app,
            http=Connection,
            proxy_headers=where.trust_forwarded,
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=MAX_HEADERS,
        )
        self._server = _Server(config)
        self._stops = 0
        self._stopping: asyncio.Task[None] | None = None
        self._forced = asyncio.Event()
        self.clean = True  # whether every request was completed
        self.hung = False  # whether the engine's thread is in a pass that does not end

    async def run(self, started: Callable[[int], None]) -> None:
        """started: called with the port once connections are accepted. Raises `EngineError` for an address that is not
        free.

        It returns at most `GRACE` seconds after a second `stop`: `hung` says that the process cannot end by itself
        then.
        """
        where = self._where
        listening = _bound(where.host, where.port) if where.uds is None else _bound_path(where.uds)
        _allow_many_connections()
        serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(TICK / 10)
        if self._server.started:
            started(listening.getsockname()[1] if where.uds is None else 0)
        await serving
        ending, forced = asyncio.create_task(self._end()), asyncio.create_task(self._forced.wait())
        await asyncio.wait({ending, forced}, return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait({ending}, timeout=GRACE)
        forced.cancel()
        self.hung = not done
        if done:
            await ending

    async def _end(self) -> None:
        if self._stopping is not None:
            await self._stopping
        if self._server.force_exit:
            await self._server.lifespan.shutdown()  # uvicorn skips this then: the engine thread would stay

    def stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._service.sessions.thread.drain()  # before anything else is taken
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._abandon()

    async def _drain(self) -> None:
        LOG.info("draining")
        if self._where.drain_delay:
            await asyncio.sleep(self._where.drain_delay)
        self._server.should_exit = True
        end = monotonic() + self._where.drain_timeout
        self.clean = await self._service.sessions.drain(self._where.drain_timeout) and self.clean
        await self._hang_up(max(end, monotonic() + GRACE))

    async def _hang_up(self, end: float) -> None:
        """Close what is still open then: an incomplete body, or an answer that is not read."""
        connections: set[Any] = self._server.server_state.connections
        while connections and monotonic() < end and not self._server.force_exit:
            await asyncio.sleep(TICK)
        for connection in list(connections):
            self.clean = self.clean and not connection.busy
            connection.transport.abort()

    def _abandon(self) -> None:
        self.clean = False
        # uvicorn waits for what these have accepted, from Python 3.12 on until each connection is closed, whatever
        # `force_exit` says: a pass that hangs keeps its own open.
        for one in self._server.servers:
            one.close()
        self._server.servers.clear()
        self._service.sessions.thread.cancel_all(QueueError("shutting_down", "this server is shutting down now", 1))
        self._server.should_exit = self._server.force_exit = True
        self._forced.set()


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: some systems start processes with 256 or 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (hard, max(soft, OPEN_FILES)) if hard == resource.RLIM_INFINITY else (hard,):
        with suppress(OSError, ValueError):  # a system's own limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the socket names TCP. With it, each answer on a connection that is
    # kept open, and each chunk of a stream, waits for the client's delayed acknowledgement: 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, TypeError) as error:  # TypeError: no name of a host can be so
        with suppress(OSError):
            bound.close()
        reason = getattr(error, "strerror", None) or error
        raise _refused(f"{host} port {port}", reason, "--host or --port") from None
    bound.set_inheritable(False)
    return bound


def _bound_path(path: Path) -> socket.socket:
    """For this user only, from the first moment: a socket that does not listen yet accepts no connection."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _free(path)
        bound.bind(str(path))
        path.chmod(SOCKET_MODE)
    except OSError as error:
        bound.close()
        raise _refused(str(path), error.strerror or error, "--uds") from None
    bound.set_inheritable(False)
    return bound


def _free(path: Path) -> None:
    """Remove the socket of a server that ended. Raises `OSError` where a server listens on it."""
    if not (path.exists() and stat.S_ISSOCK(path.stat().st_mode)):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        with suppress(BlockingIOError):  # its queue of connections is full
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _refused(where: str, reason: object, option: str) -> EngineError:
    return EngineError(f"cannot listen on {where}: {reason}; give another {option}", code="cannot_listen")
