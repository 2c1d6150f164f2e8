"""A path's handler as an ASGI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...errors import SpecExportError
from ..http.exchange import Exchange, Receive, Scope, Send
from ..service import Service
from ..wire.errors import ApiError, of_engine

Handler = Callable[[Service, Exchange], Awaitable[None]]


class Endpoint:
    """Turns errors of the handler into answers, and counts them."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self._service, self._handler = service, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.settings)
        try:
            await self._handler(self._service, exchange)
        except (ApiError, SpecExportError) as error:
            told = of_engine(error)
            self._service.metrics.rejected(told.code)
            await exchange.fail(told)
