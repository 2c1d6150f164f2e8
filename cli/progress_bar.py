"""The progress of a measurement on stderr: a bar on a terminal, else an occasional line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter

# Between lines where there is no terminal to draw a bar on.
SECONDS = 15.0
# What the rest is estimated from: steps may take a minute each.
WINDOW = 600.0


@contextmanager
def bar(label: str, then: str = "") -> Iterator[Callable[[int, int], None]]:
    """Told (steps done, steps in all), shows how many are done and about how long the others take.

    then: what follows the last step, shown as soon as it is done. Shows something only when told: a thread that
    draws would disturb measurements.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        speed_estimate_period=WINDOW,
        disable=not console.is_terminal,
        get_time=perf_counter,
    ) as progress:
        task = progress.add_task(label, total=None)
        told = perf_counter()

        def advance(done: int, total: int) -> None:
            nonlocal told
            ended = done == total and then != ""
            progress.update(task, completed=done, total=total, description=then if ended else label, refresh=True)
            if console.is_terminal or not (ended or perf_counter() - told > SECONDS):
                return
            told = perf_counter()
            left = progress.tasks[0].time_remaining
            rest = f", {then}" if ended else f", about {timedelta(seconds=round(left))} left" if left else ""
            console.print(f"{label}: {done} of {total}{rest}", highlight=False)

        yield advance
