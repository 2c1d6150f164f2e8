"""An app behind a socket, by uvicorn: from the first request to a shutdown that lets the last one end."""

from __future__ import annotations

import asyncio
import logging
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
from .http.accepting import Acceptor, connections_of
from .http.access import MAX_HEADERS
from .service import Service

try:
    import uvicorn

    from .http.connection import Connection, make_room
except ModuleNotFoundError as error:
    raise MissingPackageError(str(error.name), "serve") from None

LOG = logging.getLogger("specexport.serve")
GRACE = 1.0  # seconds for sending the last bytes once no request runs
TICK = 0.05
SOCKET_MODE = 0o600


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


class _Server(uvicorn.Server):
    """Does nothing: signals are handled by the command."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Listener:
    """`run` serves until `stop`. `stop` may be called from a signal handler of the event loop; a second call ends it at
    once.
    """

    def __init__(self, app: Starlette, where: Listening) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of the process, which this command owns
        self._service: Service = app.state.service
        self._where = where
        most = connections_of(self._service.settings.max_requests)
        self._config = uvicorn.Config(
            app,
            http=type("Protocol", (Connection,), {"most": most}),
            proxy_headers=where.trust_forwarded,
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=MAX_HEADERS,
        )
        self._server = _Server(self._config)
        self._acceptor: Acceptor | None = None
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
        serving = asyncio.create_task(self._server.serve(sockets=[]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(TICK / 10)
        if self._server.started:
            self._acceptor = Acceptor(listening, self._connection, self._make_room)
            started(listening.getsockname()[1] if where.uds is None else 0)
        await serving
        self._stop_listening()
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

    def _connection(self) -> Connection:
        server = self._server
        return self._config.http_protocol_class(  # type: ignore[call-arg, return-value]  # as uvicorn's own server does
            config=self._config, server_state=server.server_state, app_state=server.lifespan.state
        )

    def _stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def _make_room(self, count: int) -> None:
        connections = self._server.server_state.connections
        make_room(connections, len(connections) - count)

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
        self._stop_listening()
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
        self._service.sessions.thread.cancel_all(QueueError("shutting_down", "this server is shutting down now", 1))
        self._stop_listening()
        self._server.should_exit = self._server.force_exit = True
        self._forced.set()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the socket names TCP. With it, each answer on a connection that is
    # kept open, and each chunk of a stream, waits for the client's delayed acknowledgement: 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, TypeError) as error:  # TypeError: no name of a host can be so
        with suppress(OSError):
            found.close()
        reason = getattr(error, "strerror", None) or error
        raise EngineError(
            f"cannot listen on {host} port {port}: {reason}; give another --host or --port", code="cannot_listen"
        ) from None
    found.set_inheritable(False)
    return found


def _bound_path(path: Path) -> socket.socket:
    """For this user only, from the first moment: a socket that does not listen yet accepts no connection."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):  # left by a server that ended
            path.unlink()
        found.bind(str(path))
        path.chmod(SOCKET_MODE)
    except OSError as error:
        found.close()
        raise EngineError(
            f"cannot listen on {path}: {error.strerror or error}; give another --uds", code="cannot_listen"
        ) from None
    found.set_inheritable(False)
    return found
