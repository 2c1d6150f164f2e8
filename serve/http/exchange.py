"""One HTTP request and its answer, directly on ASGI: no middleware that hides when a client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

from ..settings import ServerSettings
from ..wire.errors import ApiError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")
JSON = "application/json"
CLIENT_GONE = 499  # nginx's status for it, in logs only
# How many bytes of a body that is too large are read and dropped after the answer: if the server closed the connection
# while the client still sends, the client would see a broken connection instead of the answer.
MAX_DISCARDED = 64 << 20


class ClientGone(Exception):  # noqa: N818 (nobody's failure)
    pass


class Exchange:
    """begun: the status has been sent. headers: additional ones to send with it. key: whose turns in the queue these
    are. notes: for the log's line. counted: it is in the metrics of the requests that ended. last_words: the events of
    an error that ends a stream.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings) -> None:
        self.scope, self._receive, self._send, self._settings = scope, receive, send, settings
        self.begun = self.gone = self.counted = self._sends_on = False
        self.headers: dict[str, str] = {}
        self.notes: dict[str, Any] = {}
        self.key = ""
        self.last_words: Callable[[ApiError], bytes] = lambda error: b"data: " + error.body + b"\n\n"
        self._sent_at = monotonic()

    @property
    def path(self) -> str:
        """The path within the app, wherever that is mounted."""
        whole, root = str(self.scope["path"]), str(self.scope.get("root_path", ""))
        return whole.removeprefix(root) or "/"

    def header(self, name: str) -> str:
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == wanted), "")

    async def body(self) -> bytes:
        """The whole JSON body. Raises `ApiError` 408, 413, 415, and `ClientGone`."""
        if self.header("content-type").partition(";")[0].strip().lower() != JSON:
            raise ApiError("unsupported_media_type", f"the body is not {JSON}; send it with that Content-Type")
        declared = self.header("content-length")
        if declared.isdecimal() and int(declared[:20]) > self._settings.max_body:
            raise self._too_large(more=True)
        try:
            return await asyncio.wait_for(self._read(), self._settings.body_timeout)
        except asyncio.TimeoutError:
            reason = f"the body did not arrive within {self._settings.body_timeout:g} s"
            raise ApiError("body_timeout", reason, headers={"Connection": "close"}) from None

    async def _read(self) -> bytes:
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = bool(message.get("more_body"))
            if size > self._settings.max_body:
                raise self._too_large(more)
            if not more:
                return b"".join(parts)

    def _too_large(self, more: bool) -> ApiError:
        self._sends_on = more
        reason = f"the body has more than {self._settings.max_body} bytes; send less"
        return ApiError("body_too_large", reason, headers={"Connection": "close"})

    async def _discard(self) -> None:
        """Drop what the client still sends, for at most `body_timeout`."""

        async def read() -> None:
            size, more = 0, True
            while more and size <= MAX_DISCARDED:
                message = await self._receive()
                size, more = size + len(message.get("body", b"")), message.get("more_body", False)

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read(), self._settings.body_timeout)

    @contextmanager
    def watched(self, leave: Callable[[], object]) -> Iterator[None]:
        """Calls `leave` when the client disconnects, even while nothing is sent to it."""

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.gone = True
            leave()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()

    async def while_there(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when the client disconnects. Raises `ClientGone`, and what `work`
        raises.
        """
        task = asyncio.ensure_future(work)
        with self.watched(task.cancel):
            try:
                return await task
            except asyncio.CancelledError:
                if self.gone:
                    raise ClientGone from None
                raise

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer; JSON unless the headers say otherwise."""
        lines = {"content-type": JSON, "content-length": str(len(body)), **self.headers, **(headers or {})}
        await self._start(status, lines)
        content = b"" if self.scope.get("method") == "HEAD" else body
        await self._bounded({"type": "http.response.body", "body": content, "more_body": self._sends_on})
        if self._sends_on:
            await self._discard()
            await self.end()

    async def begin_events(self) -> None:
        lines = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **self.headers,
        }
        await self._start(200, lines)

    async def event(self, data: bytes) -> None:
        await self.events(b"data: " + data + b"\n\n")

    async def events(self, text: bytes) -> None:
        """As they are sent, with their names."""
        if text:
            await self._bounded({"type": "http.response.body", "body": text, "more_body": True})

    async def ping(self) -> None:
        """A comment, which readers skip, so that no proxy closes a silent stream."""
        await self.events(b": ping\n\n")

    @property
    def silent_for(self) -> float:
        """Seconds since something was last sent."""
        return monotonic() - self._sent_at

    async def end(self) -> None:
        await self._bounded({"type": "http.response.body", "body": b""})

    async def fail(self, error: ApiError) -> None:
        """Send the error as the answer, or at the end of a stream, where no [DONE] follows. The log gets its code."""
        self.notes["error"] = error.code
        if self.begun:
            await self.events(self.last_words(error))
            await self.end()
        else:
            await self.answer(error.status, error.body, error.headers)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun, self._sent_at = True, monotonic()
        lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": lines})

    async def _bounded(self, message: dict[str, Any]) -> None:
        """Raises `ClientGone` for a reader that takes nothing for `send_timeout`."""
        task, stuck = asyncio.current_task(), False

        def give_up() -> None:
            nonlocal stuck
            stuck = True
            if task is not None:
                task.cancel()

        timer = asyncio.get_running_loop().call_later(self._settings.send_timeout, give_up)
        self._sent_at = monotonic()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if stuck:
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
