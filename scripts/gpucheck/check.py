"""Checks every engine on every pair in every precision, each in its own process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from specexport.errors import EngineError

from .apart import EndedError, apart
from .plan import Case, Plan
from .report import Outcome, Report
from .shapes import SHAPES, Shape

Tell = Callable[[str], None]


News = tuple[str, Outcome]  # a line of progress, and everything found so far


def check(plan: Plan, reports: Mapping[str, Report], output: Path, tell: Tell) -> None:
    """Fill the reports, by engine. If an engine fails, its report says so, and the others continue.

    Each report is written to `output` whenever it changes, so that an interrupted run keeps what it has found. Each
    case may take its equal share of the remaining time.
    """
    for report in reports.values():
        report.write(output)
    end = monotonic() + plan.seconds
    left = len(plan.shapes) * len(plan.precisions) * len(reports)
    for shape in (SHAPES[name] for name in plan.shapes):
        with _workplace(plan.work, shape) as work:
            for precision in plan.precisions:
                for engine, report in reports.items():
                    tell(f"{shape.name}, {precision}, {engine}")
                    bandwidth = report.bandwidth.median
                    case = Case(shape, precision, engine, plan.effort, bandwidth, work, plan.work is not None)
                    _run(case, report, output, tell, (end - monotonic()) / left)
                    left -= 1


def _run(case: Case, report: Report, output: Path, tell: Tell, seconds: float) -> None:
    outcome = Outcome(case.shape.name, case.precision)
    report.outcomes.append(outcome)

    def hear(news: News) -> None:
        line, found = news
        vars(outcome).update(vars(found))
        tell(line)
        report.write(output)

    report.write(output)
    try:
        apart(_run_case, case, outcome, hear=hear, seconds=seconds)
    except EngineError as error:
        during = f", during: {outcome.step or 'the start'}" if isinstance(error, EndedError) else ""
        outcome.error = f"{error}{during}"
        hear((f"  {outcome.error}", outcome))


def _run_case(tell: Callable[[News], None], case: Case, outcome: Outcome) -> None:
    from .case import run_case  # this imports torch, which the parent does not need

    run_case(tell, case, outcome)


def prepare(plan: Plan, engines: Sequence[str], tell: Tell) -> None:
    """Build the bundles of all cases in `plan.work`. Raises `EngineError`."""
    end = monotonic() + plan.seconds
    for shape in (SHAPES[name] for name in plan.shapes):
        with _workplace(plan.work, shape) as work:
            for precision in plan.precisions:
                for engine in engines:
                    tell(f"{shape.name}, {precision}, {engine}")
                    case = Case(shape, precision, engine, plan.effort, 0.0, work, keep=True)
                    apart(_prepare_case, case, hear=lambda news: tell(news[0]), seconds=end - monotonic())


def _prepare_case(tell: Callable[[News], None], case: Case) -> None:
    from .case import prepare

    prepare(tell, case)


@contextmanager
def _workplace(work: Path | None, shape: Shape) -> Iterator[Path]:
    if work is not None:
        (work / shape.name).mkdir(parents=True, exist_ok=True)
        yield work / shape.name
        return
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
        yield Path(folder)
