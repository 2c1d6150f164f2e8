"""One request on its way through the queue and the engine thread and back to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic

from ...errors import QueueError
from ...runtime.loop.chunks import Chunk
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.state.statistics import Statistics
from ...runtime.stream import Stream
from ...runtime.text.encode import Prompt

# A reader that lags this many rounds behind has stopped reading; its request is cancelled, so the engine never waits
# for it.
MAX_UNREAD = 4096


class Started:
    """The engine has started the request."""


Event = Started | Chunk | BaseException
STARTED = Started()


class Job:
    """Submitted by `AsyncSession.submit`. `events` and `chunks` are for one task of the loop that submitted it.

    queue_seconds: how long it waited for the engine. rounds: the seconds and tokens of each. All other state belongs to
    the engine thread.
    """

    def __init__(
        self, key: str, prompt: Prompt, parameters: SamplingParameters, withdraw: Callable[[Job], bool]
    ) -> None:
        self.key, self.prompt, self.parameters = key, prompt, parameters
        self.cancelled = False
        self.error: QueueError | None = None  # the reason for cancelling, if it was not the client
        self.stream: Stream | None = None  # while it runs
        self.created = monotonic()
        self.started_at: float | None = None
        self.queue_seconds = 0.0
        self.rounds: list[tuple[float, int]] = []
        self._noted = 0.0  # seconds, up to the last round
        self._withdraw = withdraw
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[bool] | None = None  # of the task that waits for the next event
        self._done = False

    @property
    def waited(self) -> float:
        return monotonic() - self.created

    @property
    def ran(self) -> float:
        return 0.0 if self.started_at is None else monotonic() - self.started_at

    def cancel(self, error: QueueError | None = None) -> None:
        """Leave the queue at once, or end at the next prompt chunk or round; other requests are not affected.

        May be called from any thread. error: raised in the reader, instead of a last chunk with `cancelled`.
        """
        if error is not None and not self.cancelled:
            self.error = error
        self.cancelled = True  # first: the engine thread looks at it after setting `stream`
        if self._withdraw(self):
            self._leave()
        elif (stream := self.stream) is not None:
            stream.cancel()

    def expire(self, error: QueueError) -> None:
        """Leave the queue, with `error` raised in the reader, unless the engine has started it meanwhile."""
        if self._withdraw(self):
            self.error, self.cancelled = error, True
            self._leave()

    def _leave(self) -> None:
        self.queue_seconds = self.waited
        self.deliver(self.error or Chunk("", (), "cancelled", Statistics()))

    def note(self, chunk: Chunk) -> None:
        """Called by the engine thread, since a request's statistics are updated further while its chunks wait to be
        read.
        """
        if chunk.tokens:
            self.rounds.append((chunk.statistics.total_seconds - self._noted, len(chunk.tokens)))
            self._noted = chunk.statistics.total_seconds

    def deliver(self, event: Event) -> None:
        """From any thread. If the loop is closed there is no reader: the request ends."""
        try:
            self._loop.call_soon_threadsafe(self._put, event)
        except RuntimeError:
            self.cancelled = True
            if self.stream is not None:
                self.stream.cancel()

    def _put(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > MAX_UNREAD:
            self.cancel()
        self._wake(True)

    def _wake(self, there: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(there)

    async def event(self, timeout: float | None = None) -> Event | None:
        """The next event, None if none comes within `timeout` seconds. Raises what ended the request early."""
        if not self._events:
            # A future and a timer of its own: `asyncio.wait_for` makes a task of every wait, and there is one per
            # round.
            self._waiter = self._loop.create_future()
            timer = None if timeout is None else self._loop.call_later(timeout, self._wake, False)
            try:
                if not await self._waiter:
                    return None
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self._checked(self._events.popleft())

    async def started(self, timeout: float | None = None) -> bool:
        """Whether the engine started it within `timeout` seconds. Raises the error if it was refused."""
        event = await self.event(timeout)
        if isinstance(event, Chunk):  # cancelled before
            self._events.appendleft(event)
        return event is not None

    async def chunks(
        self, patience: float | None = None, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """The events after `started`. The request is cancelled if the iteration is left.

        meanwhile: awaited whenever nothing has come for `patience` seconds.
        """
        try:
            while True:
                event = await self.event(patience)
                if event is None and meanwhile is not None:
                    await meanwhile()
                if isinstance(event, Chunk):
                    yield event
                    if event.finish_reason is not None:
                        return
        finally:
            self.leave()

    def leave(self) -> None:
        """There is no reader any more: cancel the rest."""
        if not self._done:
            self.cancel()

    def _checked(self, event: Event) -> Event:
        if isinstance(event, BaseException):
            self._done = True
            raise event
        if isinstance(event, Chunk) and event.finish_reason is not None:
            self._done = True
            if event.finish_reason == "cancelled" and self.error is not None:
                raise self.error
        return event
