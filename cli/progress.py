"""What a command says on stderr meanwhile: that a bundle is loading, how far it is, that the host is busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..calibration.measuring.prompts import Request
    from ..editing.progress import StageTime
    from ..runtime.session import Session
    from ..runtime.text.prompt_file import PromptLine

# Between lines where there is no terminal to draw a bar on.
SECONDS = 15.0
# Of the loads that the system keeps.
MINUTES = (1, 5, 15)
# Processes beyond one for every CPU that are not worth a warning: the load counts the last minute, and this command.
SPARE = 0.5


@contextmanager
def bar(label: str, then: str = "", percent: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function of (steps done, steps in all) that shows them, and about how long the others take.

    then: what follows the last step, shown as soon as it is done. percent: show these numbers as one. Nothing is drawn
    between calls: a thread that draws would disturb measurements.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    count = TaskProgressColumn() if percent else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TextColumn("{task.fields[left]}"))
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task(label, total=None, left="")
        start, shown, resumed = 0.0, perf_counter(), -1

        def advance(done: int, total: int) -> None:
            nonlocal start, shown, resumed
            now, ended, left = perf_counter(), done == total and then != "", ""
            if resumed < 0:
                start, resumed = now, done
                if percent and 0 < done < total:
                    console.print(f"{label}: resumed at {100 * done // total} %", highlight=False)
            elif resumed < done < total:  # unlike rich's estimate, this one outlives a new total
                seconds = (now - start) * (total - done) / (done - resumed)
                left = f"about {timedelta(seconds=round(seconds))} left"
            said = then if ended else label
            progress.update(task, completed=done, total=total, description=said, left=left, refresh=True)
            if console.is_terminal or not (ended or now - shown > SECONDS):
                return
            shown = now
            rest = f", {then}" if ended else f", {left}" if left else ""
            far = f"{100 * done // total} %" if percent else f"{done} of {total}"
            console.print(f"{label}: {far}{rest}", highlight=False)

        yield advance


def load(bundle: Path, **options: Any) -> Session:
    """As `runtime.load`. Its seconds are ONNX Runtime's, which prepares the graphs."""
    from rich.console import Console
    from rich.markup import escape

    from ..runtime import load as loader

    with Console(stderr=True).status(f"loading {escape(str(bundle))}: preparing its graphs"):
        return loader.load(bundle, **options)


def time_lines(stages: Sequence[StageTime], seconds: float) -> list[str]:
    """One line per stage, one for the time between stages, and their sum. seconds: the command's total time."""
    total = sum(round(stage.seconds, 1) for stage in stages)
    rest = max(0.0, round(seconds - total, 1))
    lines = [(stage.label, "reused" if stage.reused else f"{stage.seconds:6.1f} s") for stage in stages]
    lines += [("everything else", f"{rest:6.1f} s"), ("total", f"{total + rest:6.1f} s")]
    return [f"{label:<20} {time}" for label, time in lines]


def note_busy_host(measured: float = 0.0) -> None:
    """Says on stderr that other processes need the CPUs, if they do. measured: for how many seconds it was, until now;
    0 before it begins.
    """
    place = sum(measured > 60 * minutes for minutes in MINUTES[1:])
    try:
        load = os.getloadavg()[place]
    except (AttributeError, OSError):
        return
    cpus = os.cpu_count() or 1
    if load > cpus + SPARE:
        start, advice = "this host may be busy", "fewer --threads may be faster"
        if measured:
            start, advice = "this host was busy during the run", "measure again when it is idle"
        click.echo(
            f"{start}: its load over {MINUTES[place]} min is {load:.1f} on {cpus} CPU{'s' * (cpus > 1)}, so times vary "
            f"more than usual; {advice}",
            err=True,
        )


def requests_of(
    session: Session,
    read: tuple[Sequence[PromptLine], Sequence[str]],
    max_new_tokens: int,
    skip_invalid: bool,
    limit: int | None,
    routes: Sequence[str] = (),
) -> list[Request]:
    """The requests of a file that are to be run: see `choose`. What was left out, or cut, is reported on stderr.

    read: by `read_prompt_lines`, so that a file that cannot be used is refused before a bundle is loaded. Raises as
    `fit` and `choose` do.
    """
    from ..calibration.measuring.prompts import choose, fit

    lines, broken = read
    requests, refused = fit(session, lines, max_new_tokens, skip_invalid)
    for message in (*broken, *refused):
        click.echo(f"skipped: {message}", err=True)
    requests = choose(requests, routes, limit)
    wanted = {line.line: line.max_new_tokens or max_new_tokens for line in lines}
    if cut := sum(request.max_new_tokens < wanted[request.line] for request in requests):
        click.echo(
            f"{cut} of {len(requests)} requests get fewer new tokens than asked for: the bundle holds "
            f"{session.capacity} tokens, the prompt included (build --max-seq-len)",
            err=True,
        )
    return requests
