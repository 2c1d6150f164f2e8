"""Who may send requests: hosts, origins and keys."""

from __future__ import annotations

import hmac
from hashlib import sha256

from ..settings import ServerSettings
from ..wire.errors import ApiError
from .exchange import Exchange

PROBES = ("/health", "/ready")  # polled by IP address, and their answers reveal nothing
OPEN = ("/", *PROBES, "/favicon.ico")
OPEN_BELOW = "/page/"
METRICS = "/metrics"


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
    """The host without its port, in lower case."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
