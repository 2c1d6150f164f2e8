"""Who may send requests: checks hosts, origins and keys."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any

from ..settings import ServerSettings
from ..wire.errors import ApiError
from .exchange import Exchange, Receive, Scope, Send

OPEN = ("/", "/health", "/ready", "/favicon.ico")
OPEN_BELOW = "/page/"
METRICS = "/metrics"
PROBES = ("/health", "/ready")  # polled by IP address, and their answers reveal nothing


class Guard:
    """Protects against DNS rebinding, pages of other sites, and clients without a key.

    Every key is compared, by digest and in constant time, so timing reveals neither which key matched nor how much of
    it.
    """

    def __init__(self, app: Any, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings
        self._digests = [sha256(key.encode()).digest() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange: Exchange = scope["state"]["exchange"]
        if exchange.path not in PROBES:
            self._check_host(exchange.header("host"))
        origin = exchange.header("origin")
        if origin:
            self._check_origin(origin, exchange.header("host"))
            if "cors" in scope["state"] and scope["method"] == "OPTIONS":  # a preflight brings no key
                await exchange.answer(204, b"")
                return
        scope["state"]["key"] = self._key(scope, exchange)
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        hosts = self._settings.hosts
        if hosts is not None and _name(host) not in hosts:
            told = f"the Host header says {host[:100]!r}; expected {' or '.join(hosts)} (--allowed-host adds others)"
            raise ApiError(403, "forbidden_host", told)

    def _check_origin(self, origin: str, host: str) -> None:
        """Pages of this server itself are allowed, and those of `cors_origins`."""
        own = origin in (f"http://{host}", f"https://{host}")
        if not own and origin not in self._settings.cors_origins:
            told = f"pages from {origin[:100]!r} may not call this server (--cors-origin)"
            raise ApiError(403, "forbidden_origin", told)

    def _key(self, scope: Scope, exchange: Exchange) -> str:
        """The key for the queue: the API key's, or else the client's address. Raises `ApiError` 401."""
        client = scope.get("client")
        peer = str(client[0]) if client else ""
        path = exchange.path
        free = path in OPEN or path.startswith(OPEN_BELOW) or (path == METRICS and self._settings.public_metrics)
        if not self._digests:
            return peer
        scheme, _, bearer = exchange.header("authorization").partition(" ")
        other = exchange.header("x-api-key") or exchange.header("api-key")  # Anthropic's clients; Azure's
        given = bearer.strip() if scheme.lower() == "bearer" else other
        digest = sha256(given.encode()).digest()
        known = [hmac.compare_digest(digest, own) for own in self._digests]
        if not any(known) and not free:
            told = "found no valid API key; send one as Authorization: Bearer KEY"
            raise ApiError(401, "invalid_api_key", told, headers={"WWW-Authenticate": "Bearer"})
        return digest.hex() if any(known) else peer


def _name(host: str) -> str:
    """The host without its port, in lower case."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
