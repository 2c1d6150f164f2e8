"""An open request, an iterator of chunks that any thread may cancel or close, and all of its chunks as one."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from threading import Condition, RLock

from ..errors import SessionBusyError, SpecExportError
from .loop.chunks import Chunk, FinishReason
from .sampling.logprobs import TokenLogprobs
from .state.cached_decoder import Cancellation
from .state.statistics import Statistics


class Stream(Iterator[Chunk]):
    """An open request: an iterator of chunks. It occupies its session until it ends, is closed or is garbage-collected.

    It ends with the chunk that has a finish reason, or with an error. As a context manager it closes itself. open:
    whether it still occupies its session.
    """

    open = False

    def __init__(self, chunks: Generator[Chunk, None, None], cancellation: Cancellation, running: RLock) -> None:
        self._chunks, self._cancellation = chunks, cancellation
        self._running = running  # the session's, held during every step, so that another thread can close between steps
        self._error: SpecExportError | None = None
        self.open = True

    def __next__(self) -> Chunk:
        with self._running:
            if self._error is not None:
                raise self._error
            try:
                chunk = next(self._chunks)
            except BaseException:
                self.open = False
                raise
            if chunk.finish_reason is not None:
                self.open = False
            return chunk

    @property
    def steps(self) -> int:
        """Number of prompt chunks and rounds begun so far, accurate to one. May be read from any thread."""
        return self._cancellation.checks

    def cancel(self) -> None:
        """End the request at the next prompt chunk or round; its last chunk has the finish reason `cancelled`.

        May be called from any thread; does not wait.
        """
        self._cancellation.requested = True

    def close(self, error: SpecExportError | None = None) -> None:
        """End the request without a last chunk. error: raised if the caller continues to iterate.

        If another thread is in a step, this cancels the request and waits for the end of that step. Raises
        `SessionBusyError` within a step of the same thread, for example in a signal handler.
        """
        self.cancel()
        if self.open:  # else another stream may be running by now
            with self._running:
                self._close(error)

    def _close(self, error: SpecExportError | None) -> None:
        if not self.open:  # it ended in the meantime
            return
        try:
            self._chunks.close()
        except ValueError:  # being executed by this very thread
            raise SessionBusyError("a stream cannot be closed from within its own step; call cancel() there") from None
        self._error = error
        self.open = False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.open:
            self.close()


@dataclass(frozen=True)
class Generation:
    """The result of a whole request.

    finish_reason: `stop` (a stop token or stop string, or the grammar is complete), `length` (max_new_tokens or the
    capacity was reached) or `cancelled` (by `Session.cancel`). logprobs: one for each token, if requested.
    prompt_logprobs: one for each token of the prompt except the first, if requested.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Generation:
        """All chunks of a stream as one."""
        last = chunks[-1]
        assert last.finish_reason is not None
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        logprobs = tuple(one for chunk in chunks for one in chunk.logprobs)
        text, scored = "".join(chunk.text for chunk in chunks), chunks[0].prompt_logprobs
        return cls(text, tokens, last.finish_reason, last.statistics, logprobs, scored)


def holds(lock: RLock) -> bool:
    """Whether this thread holds `lock`."""
    try:
        Condition(lock).notify(0)
    except RuntimeError:
        return False
    return True
