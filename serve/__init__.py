"""The OpenAI API over one session: `create_app` gives an ASGI app, `AsyncSession` a session for asyncio.

Neither opens sockets, nor installs signal handlers, nor changes logging; `specexport serve` does, and only there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackageError

if TYPE_CHECKING:
    from .app import create_app
    from .engine.async_session import AsyncSession
    from .settings import ServerSettings

__all__ = ["AsyncSession", "ServerSettings", "create_app"]
MODULES = {"AsyncSession": ".engine.async_session", "ServerSettings": ".settings", "create_app": ".app"}


def __getattr__(name: str) -> Any:
    """Imports each when it is asked for: `settings.py` describes the command line, which needs no server's packages."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(MODULES[name], __name__), name)
    except ModuleNotFoundError as error:
        raise MissingPackageError(str(error.name).partition(".")[0], "serve") from None
