"""The OpenAI API over one session: `create_app` gives an ASGI app, `AsyncSession` a session for asyncio.

Neither opens sockets, nor installs signal handlers, nor changes logging; `specexport serve` does, and only there.
"""

from ..errors import MissingPackageError

try:
    import msgspec  # noqa: F401
    import prometheus_client  # noqa: F401
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackageError(str(error.name), "serve") from None

from .app import create_app
from .engine.async_session import AsyncSession
from .settings import ServerSettings

__all__ = ["AsyncSession", "ServerSettings", "create_app"]
