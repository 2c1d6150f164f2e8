"""The ASGI app of one session, and its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import SpecExportError
from ..runtime.session import Session
from .engine.async_session import AsyncSession
from .http.access import Access
from .http.exchange import Exchange, Receive, Scope, Send
from .http.guard import Guard
from .routes import about, page
from .routes.generate import chat, completions
from .service import Service
from .settings import ServerSettings
from .wire.errors import ApiError, of_engine

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", completions),
    ("POST", "/tokenize", about.tokenize),
    ("POST", "/detokenize", about.detokenize),
    ("GET", "/v1/models", about.models),
    ("GET", "/v1/models/{name:path}", about.model),
    ("GET", "/health", about.health),
    ("GET", "/ready", about.ready),
    ("GET", "/version", about.version),
    ("GET", "/metrics", about.metrics),
    ("GET", "/openapi.json", about.openapi),
    ("GET", "/", page.index),
    ("GET", "/page/{name}", page.asset),
)

# What other APIs have at paths of their own.
INSTEAD = {
    **dict.fromkeys(("/v1/responses", "/v1/messages", "/api/chat", "/responses", "/messages"), "/v1/chat/completions"),
    **dict.fromkeys(("/api/generate", "/completion", "/generate", "/v1/fim/completions"), "/v1/completions"),
    **dict.fromkeys(("/api/tags", "/api/models", "/props"), "/v1/models"),
}


Handler = Callable[[Service, Exchange], Awaitable[None]]


def create_app(session: Session | AsyncSession, settings: ServerSettings | None = None) -> Starlette:
    """An ASGI app over `session`, which it does not close: mount it, or run it in any ASGI server.

    Nothing else may use the session meanwhile. It opens no sockets, installs no signal handlers, and changes no
    logging. `app.state.service` has the queue and the metrics. Raises `ParameterError`.
    """
    settings = settings or ServerSettings()
    sessions = session if isinstance(session, AsyncSession) else _asynchronous(session, settings)
    service = Service(sessions, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if not isinstance(session, AsyncSession):
            await sessions.close()

    app = Starlette(
        routes=[Route(path, Endpoint(service, handler), methods=[method]) for method, path, handler in ROUTES],
        middleware=[
            Middleware(
                Access,
                settings=settings,
                rejected=service.metrics.rejected,
                retry_after=service.sessions.thread.retry_after,
            ),
            Middleware(Guard, settings=settings),
        ],
        exception_handlers={HTTPException: _unrouted},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # to an http address, also behind a proxy that speaks https
    app.state.service = service
    return app


def _asynchronous(session: Session, settings: ServerSettings) -> AsyncSession:
    waiting = (settings.max_queue, settings.waiting_per_key, settings.queue_timeout)
    sessions = AsyncSession(session, *waiting, settings.grammar_timeout)
    for bounded in (sessions.thread, sessions.encoders, sessions.compilers):
        bounded.turns_by = "key" if settings.api_keys else "address"
    return sessions


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answers requests without a route: 404 and 405."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    instead = INSTEAD.get(path) or next((known for _, known, _ in ROUTES if known == f"/v1{path}"), None)
    see = "see /openapi.json" if instead is None else f"use {instead}"
    code, told = "not_found", f"there is nothing at {request.url.path[:200]!r}; {see}"
    if error.status_code == 405:
        code, told = (
            "method_not_allowed",
            f"the method {request.method[:20]} is not allowed for {request.url.path[:200]!r}",
        )
    request.scope["state"]["notes"]["error"] = code
    headers: dict[str, Any] = dict(error.headers or {})
    body = ApiError(error.status_code, code, told).body
    return Response(body, error.status_code, headers, media_type="application/json")


class Endpoint:
    """Turns errors of the handler into answers, and counts them."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self._service, self._handler = service, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["state"]["exchange"]  # of `Access`
        try:
            await self._handler(self._service, exchange)
        except (ApiError, SpecExportError) as error:
            told = of_engine(error)
            self._service.metrics.rejected(told.code)
            await exchange.fail(told)
