"""The outermost layer: a request id, who may send requests, one log line, and the answer to an error.

Who may send them is decided by hosts, origins and keys.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
from collections.abc import Callable, Collection
from hashlib import sha256
from time import perf_counter
from typing import Any

from ..settings import ServerSettings
from ..wire.errors import ApiError, of_engine
from .exchange import CLIENT_GONE, ClientGone, Exchange, Receive, Scope, Send

LOG = logging.getLogger("specexport.access")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_HEADERS = 32 * 1024
REPLICA_HEADER = "x-specexport-replica"
PROBES = ("/health", "/ready")  # polled by IP address, and their answers reveal nothing
OPEN = ("/", *PROBES, "/favicon.ico")
OPEN_BELOW = "/page/"
METRICS = "/metrics"
NEVER_REFUSED = (*PROBES, METRICS)


class Access:
    """At most `max_requests` at once, apart from those about the server's state. Writes one JSON line for each, without
    any text of prompt or answer.
    """

    def __init__(
        self, app: Any, settings: ServerSettings, rejected: Callable[[str], None], retry_after: Callable[[], int]
    ) -> None:
        """rejected: called with the code of each refusal. retry_after: seconds for those that are too many."""
        self._app, self._settings, self._rejected, self._retry_after = app, settings, rejected, retry_after
        self._guard = Guard(settings)
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), 0
        extra = {} if self._settings.replica is None else {REPLICA_HEADER: self._settings.replica}

        async def noted(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                lines = [(key.encode(), value.encode("latin-1")) for key, value in extra.items()]
                message["headers"] = [*message["headers"], *lines]
            await send(message)

        exchange = Exchange(scope, receive, noted, self._settings)
        scope.setdefault("state", {})["exchange"] = exchange
        name = exchange.header("x-request-id")
        extra["x-request-id"] = name if REQUEST_ID.fullmatch(name) else secrets.token_hex(16)
        exchange.notes["request_id"] = extra["x-request-id"]
        cors = _cors(exchange, self._settings.cors_origins)  # first: refusals have them too
        extra |= cors
        try:
            await self._answer(scope, receive, noted, bool(cors) and scope["method"] == "OPTIONS")
        except ClientGone:  # also a reader that takes nothing
            exchange.notes["status"] = CLIENT_GONE
        finally:
            if self._settings.access_log and LOG.isEnabledFor(logging.INFO):
                _log(scope, exchange.notes, status or CLIENT_GONE, perf_counter() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, preflight: bool) -> None:
        exchange: Exchange = scope["state"]["exchange"]
        free = exchange.path in NEVER_REFUSED or preflight
        admitted = not free and self._open < self._settings.max_requests
        self._open += admitted
        try:
            if not (free or admitted):
                wait = self._retry_after()
                message = f"{self._settings.max_requests} requests are open; retry in {wait} s"
                raise ApiError("queue_full", message, headers={"Retry-After": str(wait)})
            if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
                raise ApiError("headers_too_large", f"the headers have more than {MAX_HEADERS} bytes; send less")
            self._guard.check(exchange)
            if preflight:  # it brings no key
                await exchange.answer(204, b"")
                return
            exchange.key = self._guard.key(exchange)
            await self._app(scope, receive, send)
        except ClientGone:
            raise
        except Exception as error:
            refusal = of_engine(error)
            if not exchange.counted:
                self._rejected(refusal.code)
            await exchange.fail(refusal)
        finally:
            self._open -= admitted


def _log(scope: Scope, notes: dict[str, Any], status: int, seconds: float) -> None:
    row = {
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": notes.pop("status", status),
        "seconds": round(seconds, 4),
        **notes,
    }
    LOG.info("%s", json.dumps(row))  # JSON: a line break in a path stays inside its text


def _cors(exchange: Exchange, origins: Collection[str]) -> dict[str, str]:
    """CORS headers for a page of one of `origins`. No route depends on the headers that a preflight asks for, so all
    are allowed.
    """
    origin, wanted = exchange.header("origin"), exchange.header("access-control-request-headers")
    if origin not in origins:
        return {}
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST, OPTIONS",
        "access-control-allow-headers": wanted or "authorization, content-type, x-api-key, x-request-id",
        "access-control-expose-headers": "retry-after, x-request-id, x-specexport-ignored, x-specexport-relaxed, "
        + REPLICA_HEADER,
        "vary": "Origin, Access-Control-Request-Headers",
    }


class Guard:
    """Protects against DNS rebinding, pages of other sites, and clients without a key.

    Every key is compared, by digest and in constant time, so timing reveals neither which key matched nor how much of
    it.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._digests = [sha256(key.encode()).digest() for key in settings.api_keys]

    def check(self, exchange: Exchange) -> None:
        """The Host and Origin headers: pages of this server are allowed, and those of `cors_origins`. Raises
        `ApiError` 403.
        """
        host, origin, hosts = exchange.header("host"), exchange.header("origin"), self._settings.hosts
        if exchange.path not in PROBES and hosts is not None and _name(host) not in hosts:
            reason = f"the Host header says {host[:100]!r}; expected {' or '.join(hosts)} (--allowed-host adds others)"
            raise ApiError("forbidden_host", reason)
        if origin and origin not in (f"http://{host}", f"https://{host}", *self._settings.cors_origins):
            raise ApiError("forbidden_origin", f"pages from {origin[:100]!r} may not call this server (--cors-origin)")

    def key(self, exchange: Exchange) -> str:
        """The key for the queue: the API key's digest, or else the client's address. Raises `ApiError` 401."""
        client, path = exchange.scope.get("client"), exchange.path
        address = str(client[0]) if client else ""
        free = path in OPEN or path.startswith(OPEN_BELOW) or (path == METRICS and self._settings.public_metrics)
        if not self._digests:
            return address
        scheme, _, bearer = exchange.header("authorization").partition(" ")
        other = exchange.header("x-api-key") or exchange.header("api-key")  # Anthropic's clients; Azure's
        sent = bearer.strip() if scheme.lower() == "bearer" else other
        digest = sha256(sent.encode()).digest()
        known = [hmac.compare_digest(digest, one) for one in self._digests]
        if not any(known) and not free:
            reason = "there is no valid API key; send one as Authorization: Bearer KEY"
            raise ApiError("invalid_api_key", reason, headers={"WWW-Authenticate": "Bearer"})
        return digest.hex() if any(known) else address


def _name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
