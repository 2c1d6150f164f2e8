"""A build's progress on stderr, in rich's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# Between lines of a stage where there is no terminal to draw a bar on.
SECONDS = 15.0
# Steps that have ended before the rest is estimated from them: they differ in length.
ENOUGH = 3


class BuildDisplay:
    """Implements `BuildProgress`: one bar per stage with its steps, the time taken and an estimate
    of the time left. It is removed when the build ends. Respects NO_COLOR.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[step]}"),
        )
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )

    def __enter__(self) -> BuildDisplay:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        if not self._console.is_terminal:
            with self._lines(label, steps) as announce:
                yield announce
            return
        task = self._progress.add_task(label, total=steps, step="")
        announced = 0

        def update(step: str) -> None:
            nonlocal announced
            self._progress.update(task, completed=announced, step=step)
            announced += 1

        yield update
        self._progress.update(task, completed=steps, step="")

    @contextmanager
    def _lines(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        """Prints the stage now, and every SECONDS the step that it is at: a step may take minutes."""
        self.note(label)
        started, ended = perf_counter(), Event()
        announced, current, since = 0, "", started

        def announce(step: str) -> None:
            nonlocal announced, current, since
            announced, current, since = announced + 1, step, perf_counter()

        def tell() -> None:
            while not ended.wait(SECONDS):
                if current:
                    self.note(f"{label}: {current}, {announced} of {steps}{_left(announced, steps, started, since)}")

        teller = Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield announce
        finally:
            ended.set()
            teller.join()

    def note(self, message: str) -> None:
        self._console.print(message, highlight=False, soft_wrap=True)


def _left(announced: int, steps: int, started: float, since: float) -> str:
    """About how long this step, begun at `since`, and the later ones take, if they are like those that have ended."""
    done = announced - 1
    if done < ENOUGH:
        return ""
    left = (since - started) / done * (steps - done) - (perf_counter() - since)
    return f", about {timedelta(seconds=round(left))} left" if left > 0 else ""
