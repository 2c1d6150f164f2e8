"""`specexport calibrate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from .group import command_line
from .options import BUNDLE, FILE, JSON, LIMIT, MAX_NEW_TOKENS, PROMPTS, SEED, SKIP_INVALID, TOP_K, TOP_P, running
from .progress import bar, note_busy_host, requests_of


@click.command()
@BUNDLE
@PROMPTS
@SKIP_INVALID
@LIMIT
@MAX_NEW_TOKENS
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Sampling temperature; 0 is greedy.")
@TOP_K
@TOP_P
@SEED
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    help="Drafter to consider, or all; repeatable. [default: all that the engine runs]",
)
@click.option(
    "--floor",
    type=float,
    default=0.9,
    show_default=True,
    help="p10 speedup below which a route does not speculate.",
)
@click.option(
    "--fixed",
    is_flag=True,
    help="Write a policy with fixed numbers of draft tokens.",
)
@click.option("--report", type=FILE, help="File for the report, .md. [default: BUNDLE/report.md]")
@click.option("--details", is_flag=True, help="Also print the report's tables.")
@running
@JSON
def calibrate(
    bundle: Path,
    prompts: Path,
    skip_invalid: bool,
    limit: int | None,
    max_new_tokens: int,
    fixed: bool,
    report: Path | None,
    where: dict[str, Any],
    details: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Decide for each route whether to draft, and how.

    Measures costs and acceptance on this host with your prompts. Writes costs.json, policy.json and other files that
    sessions follow into the bundle, and a report. An interrupted run resumes where it stopped.
    """
    from ..calibration.calibrate import calibrate as run
    from ..calibration.calibrate import check_packages, journal_path
    from ..calibration.options import CalibrateOptions, drafters_of, models_of
    from ..calibration.report import answer, check_report, render, verdicts, write_report
    from ..runtime.policy.files import REPORT
    from ..runtime.text.prompt_file import read_prompt_lines
    from .progress import load

    start = perf_counter()
    chosen = CalibrateOptions(mode="fixed" if fixed else "adaptive", **options)
    if report is not None:
        check_report(report)
    check_packages()
    read = read_prompt_lines(prompts, skip_invalid)
    session = load(bundle, **where, policy=False)
    requests = requests_of(session, read, max_new_tokens, skip_invalid, limit)
    if len(drafts := models_of(session, chosen)) > 1:
        considered = len(drafters_of(session, chosen))
        click.echo(
            f"{considered} drafters are considered, and every request runs with {len(drafts)} drafts; naming fewer "
            "with --drafter makes this shorter",
            err=True,
        )
    note_busy_host()
    click.echo(
        f"costs are measured before and between the {len(requests)} requests, and at the end up to the bundle's "
        "capacity; that can take longer than the requests",
        err=True,
    )
    with (
        _resumable(journal_path(session, requests, chosen)),
        bar("calibrate", "deciding by route", percent=True) as advance,
    ):
        analysis = run(session, requests, chosen, command_line(sys.argv[1:]), advance)
    click.echo(json.dumps(analysis.as_dict()) if as_json else render(analysis) if details else verdicts(analysis))
    report = report or session.bundle.root / REPORT
    write_report(analysis, report)
    took = timedelta(seconds=round(perf_counter() - start))
    click.echo(f"\n{answer(analysis)}; this run took {took}", err=True)
    click.echo(f"sessions follow {session.bundle.root / 'policy.json'}; why, with all tables: {report}", err=True)
    if any(entry.policy.verdict == "undecided" for entry in analysis.routes):
        raised = " with a higher --limit" if limit is not None else ""
        click.echo(
            f"next: add requests to {prompts}, as the verdicts say, and run the same command again{raised} "
            "(it starts over)",
            err=True,
        )
    note_busy_host(perf_counter() - start)
    if options["drafters"]:
        click.echo("from now on leave out --drafter: with it, sessions do not follow the policy", err=True)


@contextmanager
def _resumable(journal: Path) -> Iterator[None]:
    """Ends an interrupted measurement by saying how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted; run the same command again to resume, or delete {journal} to start over", err=True)
        raise SystemExit(130) from None
