"""The engine thread: it alone runs the session, one job at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import takewhile
from threading import Condition, Thread
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import (
    EngineError,
    GrammarError,
    MissingPackageError,
    QueueError,
    SessionClosedError,
    SpecExportError,
)
from ...runtime.loop.chunks import Chunk
from .fair_queue import FairQueue
from .job import STARTED, Event, Job

if TYPE_CHECKING:
    from ...runtime.session import Session

NEWEST = 0.3  # share of the newest job in the mean
LONGEST_RETRY = 60  # seconds: openai's clients ignore longer ones, and come again at once
SHUTTING_DOWN = "no new requests are taken during the shutdown; send this one to another replica, or later"


class EngineThread:
    """Started with the first job. A process that loaded a bundle must not fork, neither before nor after that."""

    def __init__(
        self, session: Session, most: int, most_per_key: int, grammar_timeout: float, keys_are: str = "key"
    ) -> None:
        """most: jobs that may wait; most_per_key: of one key. grammar_timeout: seconds of masks for one job."""
        self._session, self._grammar_timeout = session, grammar_timeout
        self._queue: FairQueue[Job] = FairQueue(most, most_per_key, keys_are, self.retry_after)
        self._changed = Condition()
        self._thread: Thread | None = None
        self._running: Job | None = None
        self._stopped = self.draining = False
        self._unfinished = 0  # requests of several jobs, which may be between two of them
        self._cut_off: QueueError | None = None  # what a drain ended the rest with
        self._usual: float | None = None  # seconds that a job runs, a running mean
        self._seen: tuple[Job | None, int] = (None, 0)  # what ran at the last check, and its steps
        self._seen_at = monotonic()
        self.failed_in_a_row = 0  # requests since the last that the engine completed; invalid ones do not count

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._queue)

    @property
    def running(self) -> int:
        return int(self._running is not None)

    @property
    def alive(self) -> bool:
        """False once the thread has ended without being stopped."""
        return self._thread is None or self._thread.is_alive() or self._stopped

    def stalled_for(self) -> float:
        """Seconds since the running request's last prompt chunk or round, as far as earlier checks show; 0 if idle."""
        job = self._running
        stream = job.stream if job is not None else None
        seen = (job, stream.steps if stream is not None else 0)
        if job is None or seen != self._seen:
            self._seen, self._seen_at = seen, monotonic()
        return monotonic() - self._seen_at if job is not None else 0.0

    def prepare(self) -> None:
        """`Session.prepare` in this thread, which runs the rounds.

        Blocks. Call it before the first job; it does nothing after that.
        """
        prepared: Future[None] = Future()

        def prepare() -> None:
            try:
                self._session.prepare()
                prepared.set_result(None)
            except BaseException as error:
                prepared.set_exception(error)

        with self._changed:
            if self._thread is not None:
                return
            self._start(prepare)
        prepared.result()

    def submit(self, job: Job, again: bool = False, timeout: float = math.inf) -> None:
        """Raises `QueueError`, also if its turn is not expected within `timeout` seconds, and `SessionClosedError` once
        it was stopped. again: see `AsyncSession.submit`.
        """
        with self._changed:
            if self._stopped:
                raise SessionClosedError("this AsyncSession is closed; make another one")
            if self._cut_off is not None and again:
                raise self._cut_off
            if self.draining and not again:
                raise QueueError("shutting_down", SHUTTING_DOWN, 1)
            # A burst comes before the thread takes the first one up.
            self._queue.put(job.key, job, idle=self._running is None, again=again)
            expected = 0.0 if again else self.starts_in(job)
            if expected > timeout:
                wait = self.retry_after(job)
                self.withdraw(job)
                reason = f"the engine is expected to be busy for another {expected:.0f} s, and a request may wait for "
                raise QueueError("queue_timeout", f"{reason}{timeout:.0f} s; retry in {wait} s", wait)
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def starts_in(self, job: Job | None = None) -> float:
        """Estimated seconds until the turn of `job`, which waits; without one, until nothing waits any more.

        Each takes as long as earlier ones did, and one that already takes longer as long again.
        """
        with self._changed:
            running = self._running
            ran = running.ran if running is not None else 0.0
            left = max((self._usual or 0.0) - ran, ran) if running is not None else 0.0
            usual = ran + left if self._usual is None else self._usual
            return left + usual * sum(1 for _ in takewhile(lambda other: other is not job, self._queue))

    def retry_after(self, job: Job | None = None) -> int:
        """`starts_in` as whole seconds, 1 to 60. Before any request has ended, at least one for each."""
        with self._changed:
            least = 1 if self._usual is not None else self.running + len(self._queue)
            return min(max(math.ceil(self.starts_in(job)), least, 1), LONGEST_RETRY)

    def withdraw(self, job: Job) -> bool:
        """Returns whether the job was waiting; it no longer is."""
        with self._changed:
            waited = self._queue.remove(job.key, job)
            self._changed.notify_all()
            return waited

    @contextmanager
    def several_jobs(self) -> Iterator[None]:
        """While a request sends one job after the other: a drain waits for all of them."""
        with self._changed:
            self._unfinished += 1
        try:
            yield
        finally:
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()

    def drain(self) -> None:
        """Accept no new requests from now on; open ones continue."""
        with self._changed:
            self.draining = True

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Whether nothing waits or runs, nor is still to come, after `timeout` seconds at the latest. Blocks."""
        with self._changed:
            return self._changed.wait_for(self._idle, timeout)

    def _idle(self) -> bool:
        to_come = self._unfinished and self._cut_off is None
        return not len(self._queue) and self._running is None and not to_come

    def cancel_all(self, error: QueueError) -> None:
        with self._changed:
            self._cut_off = error
            jobs = [*self._queue, *([self._running] if self._running is not None else [])]
        for job in jobs:
            job.cancel(error)

    def stop(self) -> None:
        """End the thread after the job that it runs. Blocks; must not be called from the thread itself."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _start(self, first: Callable[[], None] = lambda: None) -> None:
        self._thread = Thread(target=self._run, args=(first,), name="specexport-engine", daemon=True)
        self._thread.start()

    def _run(self, first: Callable[[], None]) -> None:
        first()
        while (job := self._next()) is not None:
            try:
                self._serve(job)
            finally:
                with self._changed:
                    if job.rounds:
                        self._usual = job.ran if self._usual is None else self._usual + NEWEST * (job.ran - self._usual)
                    self._running = job.stream = None
                    self._changed.notify_all()

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._queue) > 0)
            self._running = None if self._stopped else self._queue.pop()
            return self._running

    def _serve(self, job: Job) -> None:
        job.started_at = monotonic()
        job.queue_seconds = job.started_at - job.created
        try:
            with self._session.stream(job.prompt, job.parameters) as stream:
                job.stream = stream
                if job.cancelled:  # before it had a stream
                    stream.cancel()
                job.deliver(STARTED)
                for chunk in stream:
                    job.note(chunk)
                    if chunk.finish_reason is not None:
                        self._end(job, chunk)
                        continue
                    if chunk.statistics.grammar_seconds > self._grammar_timeout:
                        limit = f"{self._grammar_timeout:g} s to compute which tokens may follow"
                        raise GrammarError(f"the grammar took more than {limit}; simplify it", code="grammar_failed")
                    job.deliver(chunk)
        except SpecExportError as error:
            self._end(job, error)
        except BaseException as error:  # a bug ends its request, not the thread
            self._end(job, error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _end(self, job: Job, last: Event) -> None:
        """Gauges fall before the client is notified, so that its next read sees them fallen."""
        if isinstance(last, Chunk):
            if last.finish_reason != "cancelled":
                self.failed_in_a_row = 0
        elif isinstance(last, EngineError) or not isinstance(last, SpecExportError):
            self.failed_in_a_row += not isinstance(last, MissingPackageError)
        with self._changed:
            self._running = None
        job.deliver(last)
