"""The ASGI app of one session, and its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..runtime.sampling.options import instance
from ..runtime.session import Session
from .engine.async_session import AsyncSession
from .http.access import Access
from .http.exchange import Receive, Scope, Send
from .routes import about, page, responses
from .routes.generate import chat, completions
from .service import Service
from .settings import ServerSettings
from .wire import answers
from .wire.errors import ApiError
from .wire.openapi import EVENTS, JSON, Operation, describe
from .wire.requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .wire.responses.answers import InputTokens, ResponseAnswer
from .wire.responses.requests import ResponsesRequest

PAGE_MEDIA = ("text/css", "text/javascript", "image/svg+xml")
BOTH = (JSON, EVENTS)
OPERATIONS = (
    Operation("POST", "/v1/chat/completions", chat, "Answer a conversation.", ChatRequest, answers.ChatAnswer, BOTH),
    Operation(
        "POST", "/v1/completions", completions, "Continue prompts.", CompletionRequest, answers.CompletionAnswer, BOTH
    ),
    Operation(
        "POST",
        "/v1/responses",
        responses.responses,
        "Answer a conversation in the form of the Responses API; nothing is stored.",
        ResponsesRequest,
        ResponseAnswer,
        BOTH,
    ),
    Operation(
        "POST",
        "/v1/responses/input_tokens",
        responses.input_tokens,
        "The number of tokens of such a request.",
        ResponsesRequest,
        InputTokens,
    ),
    Operation(
        "POST", "/tokenize", about.tokenize, "Text or messages to token ids.", TokenizeRequest, answers.Tokenized
    ),
    Operation("POST", "/detokenize", about.detokenize, "Token ids to text.", DetokenizeRequest, answers.Detokenized),
    Operation("GET", "/v1/models", about.models, "The one model, by each of its names.", answer=answers.ModelList),
    Operation("GET", "/v1/models/{name:path}", about.model, "The model of that name.", answer=answers.Model),
    Operation("GET", "/health", about.health, "Whether the process is alive.", keyless=True),
    Operation("GET", "/ready", about.ready, "Whether new requests are accepted.", keyless=True),
    Operation("GET", "/version", about.version, "The version of specexport."),
    Operation("GET", "/metrics", about.metrics, "Counters for Prometheus.", media=("text/plain",)),
    Operation("GET", "/openapi.json", about.openapi, "This description."),
    Operation("GET", "/", page.file, "A page to chat with.", media=("text/html",), keyless=True),
    Operation("GET", "/page/{name}", page.file, "A part of the page.", media=PAGE_MEDIA, keyless=True),
)
# What other APIs have at paths of their own.
INSTEAD = {
    **dict.fromkeys(("/v1/messages", "/api/chat", "/messages"), "/v1/chat/completions"),
    **dict.fromkeys(("/api/generate", "/completion", "/generate", "/v1/fim/completions"), "/v1/completions"),
    **dict.fromkeys(("/api/tags", "/api/models", "/props"), "/v1/models"),
}


def create_app(session: Session | AsyncSession, settings: ServerSettings | None = None) -> Starlette:
    """The HTTP API over `session` as an ASGI app: mount it, or run it in any ASGI server. It does not close `session`.

    Nothing else may use the session meanwhile. The app opens no sockets, installs no signal handlers, and changes no
    logging. `app.state.service` has the queue and the metrics. Raises `ParameterError`.
    """
    settings = ServerSettings() if settings is None else instance("settings", settings, ServerSettings)
    session = instance("session", session, Session, AsyncSession)
    if isinstance(session, AsyncSession):
        settings.refuse_of_queue()
        sessions = session
    else:
        waiting = (settings.max_queue, settings.waiting_per_key, settings.queue_timeout)
        keys_are = "key" if settings.api_keys else "address"
        sessions = AsyncSession(session, *waiting, settings.grammar_timeout, keys_are)
    service = Service(sessions, settings, describe(OPERATIONS, bool(settings.api_keys), settings.public_metrics))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if sessions is not session:
            await sessions.close()

    app = Starlette(
        routes=[Route(one.path, Endpoint(service, one), methods=[one.method]) for one in OPERATIONS],
        middleware=[Middleware(Access, settings, service.metrics.rejected, sessions.thread.retry_after)],
        exception_handlers={HTTPException: _unrouted},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # to an http address, also behind a proxy that speaks https
    app.state.service = service
    return app


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answers requests without a route: 404 and 405."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    instead = INSTEAD.get(path) or next((one.path for one in OPERATIONS if one.path == f"/v1{path}"), None)
    see = "see /openapi.json" if instead is None else f"use {instead}"
    where = repr(request.url.path[:200])
    code, reason = "not_found", f"there is nothing at {where}; {see}"
    if error.status_code == 405:
        code, reason = "method_not_allowed", f"the method {request.method[:20]} is not allowed for {where}"
    request.scope["state"]["exchange"].notes["error"] = code
    headers: dict[str, Any] = dict(error.headers or {})
    body = ApiError(code, reason).body
    return Response(body, error.status_code, headers, media_type="application/json")


class Endpoint:
    """Called with ASGI's arguments, as Starlette calls what is no function."""

    def __init__(self, service: Service, operation: Operation) -> None:
        self._service, self._handler = service, operation.handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(self._service, scope["state"]["exchange"])  # of `Access`
