"""The page at `/`: static files of the package."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from ..http.exchange import Exchange
from ..service import Service
from ..wire.errors import ApiError

FOLDER = "page"
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, no frame around it: text of a model cannot load anything.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # cached, but revalidated by its tag each time: an update shows at once
}


@cache
def contents() -> dict[str, bytes]:
    """The page's files by name. Only these are ever served, so no path of a request reaches the disk."""
    folder = files(__package__.rpartition(".")[0]).joinpath(FOLDER)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES}


async def file(service: Service, exchange: Exchange) -> None:
    name = exchange.scope["path_params"].get("name", "index.html")
    content = contents().get(name)
    if content is None:
        raise ApiError("not_found", f"the page has no {name[:100]!r}")
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {
        **HEADERS,
        "etag": tag,
        "content-type": TYPES[name.rpartition(".")[2]],
        "content-length": str(len(content)),
    }
    if exchange.header("if-none-match") == tag:
        await exchange.answer(304, b"", headers)
    else:
        await exchange.answer(200, content, headers)
