"""Runs a request alone: one request to the app over a new session, without a socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import specexport
from specexport.serve import create_app

from .client import whole
from .good import Good


def alone(bundle: Path, request: Good, template: Path | None) -> str:
    """Its text, as in `Answer.told`. Raises `RuntimeError` if the request is refused."""
    with specexport.load(bundle, threads=1, check_digests=False, chat_template=template) as session:
        status, body = asyncio.run(_ask(create_app(session), request))
    if status != 200:
        raise RuntimeError(f"alone it is refused, with {status}: {body[:300]!r}")
    return whole(json.loads(body))


async def _ask(app: Any, request: Good) -> tuple[int, bytes]:
    incoming = [{"type": "http.request", "body": request.body(False), "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await asyncio.Event().wait()  # the client never disconnects
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": request.path,
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "state": {},
    }
    try:
        await app(scope, receive, send)
    finally:
        await app.state.service.sessions.close()
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
