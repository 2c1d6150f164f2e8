"""A build's progress on stderr, in rich's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# Between lines of a stage where there is no terminal to draw a bar on, at least.
SECONDS = 15.0


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
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not self.on_terminal)

    def __enter__(self) -> BuildDisplay:
        self._progress.start()
        return self

    @property
    def on_terminal(self) -> bool:
        return self._console.is_terminal

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        if not self.on_terminal:
            self.note(label)
        task = self._progress.add_task(label, total=steps, step="")
        announced, said = 0, perf_counter()

        def update(step: str) -> None:
            nonlocal announced, said
            self._progress.update(task, completed=announced, step=step)
            announced += 1
            if not self.on_terminal and perf_counter() - said >= SECONDS:
                self.note(f"{label}: {step}, {announced} of {steps}")
                said = perf_counter()

        yield update
        self._progress.update(task, completed=steps, step="")

    def note(self, message: str) -> None:
        self._console.print(message, highlight=False, soft_wrap=True)
