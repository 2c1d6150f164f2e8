"""An open request: an iterator of chunks that any thread may cancel or close."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from threading import Condition, RLock

from ..errors import SessionBusyError, SpecExportError
from .loop.chunks import Chunk
from .state.cancellation import Cancellation


class Stream(Iterator[Chunk]):
    """Holds its session from `Session.stream` on until it has ended, is closed, or is dropped.

    It has ended with the chunk that has a finish reason, or with an error. As a context manager it closes at the end.
    """

    def __init__(
        self,
        chunks: Generator[Chunk, None, None],
        cancellation: Cancellation,
        running: RLock,
        release: Callable[[], None],
    ) -> None:
        self._chunks, self._cancellation, self._release = chunks, cancellation, release
        self._running = running  # the session's, around every step, so that another thread closes in between
        self._open, self._ended = True, False  # and the session is given back in between
        self._error: SpecExportError | None = None

    def __next__(self) -> Chunk:
        with self._running:
            if self._error is not None:
                raise self._error
            try:
                chunk = next(self._chunks)
            except BaseException:
                self._end()
                raise
            if chunk.finish_reason is not None:
                self._end()
            return chunk

    @property
    def steps(self) -> int:
        """Prompt chunks and rounds begun so far, give or take one. From any thread."""
        return self._cancellation.checks

    def cancel(self) -> None:
        """End the request at the next prompt chunk or round; its last chunk has the finish reason `cancelled`.

        From any thread, and without waiting.
        """
        self._cancellation.requested = True

    def close(self, error: SpecExportError | None = None) -> None:
        """End the request without a last chunk. error: what a caller meets who goes on iterating.

        While another thread is in a step this waits for its end, as if cancelled. Raises `SessionBusyError` from
        within a step, as in a signal handler.
        """
        self.cancel()
        if self._ended:  # another stream may be running by now
            return
        with self._running:
            if not self._open:
                return
            try:
                self._chunks.close()
            except ValueError:  # it is being executed, and by this thread
                raise SessionBusyError(
                    "a stream cannot be closed from within its own step; call cancel() there"
                ) from None
            self._error = error
            self._end()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._release()
            self._ended = True

    def __del__(self) -> None:
        self.close()


def holds(lock: RLock) -> bool:
    """Whether this thread holds `lock`."""
    try:
        Condition(lock).notify(0)
    except RuntimeError:
        return False
    return True
