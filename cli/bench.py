"""`specexport bench`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    BUNDLE,
    DRAFTER,
    FILE,
    JSON,
    LIMIT,
    MAX_NEW_TOKENS,
    PROMPTS,
    SEED,
    SKIP_INVALID,
    TOP_K,
    TOP_P,
    running,
)
from .progress import bar, note_busy_host, requests_of

if TYPE_CHECKING:
    from ..calibration.measuring.journal import Journal


@click.command()
@BUNDLE
@PROMPTS
@SKIP_INVALID
@click.option("--route", "routes", multiple=True, help="Only requests of this route; repeatable.")
@LIMIT
@click.option(
    "--num-draft-tokens",
    type=click.IntRange(1),
    help="Draft tokens per round. [default: the bundle's policy; without one, or with --drafter, as many as pay]",
)
@DRAFTER
@MAX_NEW_TOKENS
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    help="Sampling temperature; 0 is greedy; only greedy outputs are compared.",
)
@TOP_K
@TOP_P
@SEED
@click.option("--repeats", type=click.IntRange(1), default=1, help="Runs of each request, plain and speculative.")
@click.option(
    "--journal",
    type=FILE,
    help="File that keeps finished pairs, to resume from; those of another run are replaced. "
    "[default: one in BUNDLE/calibration]",
)
@running
@JSON
def bench(
    bundle: Path,
    prompts: Path,
    skip_invalid: bool,
    routes: tuple[str, ...],
    limit: int | None,
    journal: Path | None,
    where: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Compare the speed of plain and speculative decoding.

    Plain and speculative runs alternate on your prompts. Greedy outputs are compared: exit code 1 if they differ
    beyond near ties.
    """
    from ..calibration.bench.interleaved import bench as run
    from ..calibration.bench.interleaved import check, journal_header
    from ..calibration.bench.results import BenchOptions
    from ..calibration.bench.table import render
    from ..calibration.measuring.journal import Journal, own_path
    from ..runtime.policy.files import JOURNALS
    from ..runtime.text.prompt_file import read_prompt_lines
    from .progress import load

    chosen = BenchOptions(**options)
    read = read_prompt_lines(prompts, skip_invalid)
    session = load(bundle, **where)
    requests = requests_of(session, read, chosen.max_new_tokens, skip_invalid, limit, routes)
    check(session, requests, chosen)
    note_busy_host()
    header, pairs = journal_header(session, requests, chosen), len(requests) * chosen.repeats
    path = journal or own_path(session.bundle.path(JOURNALS), "bench", header)
    with Journal.open(path, header) as kept:
        _note_journal(kept, pairs)
        try:
            with bar("bench") as advance:
                result = run(session, requests, chosen, kept, advance)
        except KeyboardInterrupt:
            done = len(kept.finished)
            click.echo(
                f"interrupted; {path} holds {done} of {pairs} pairs; run the same command again to resume", err=True
            )
            raise SystemExit(130) from None
        click.echo(json.dumps(result.as_dict()) if as_json else render(result))
        kept.remove()
    if journal is None:
        with suppress(OSError):  # other files may lie there
            path.parent.rmdir()
    if not result.passed:
        raise SystemExit(1)


def _note_journal(journal: Journal, pairs: int) -> None:
    if journal.replaced:
        click.echo(f"{journal.path} belonged to another run and is replaced", err=True)
    elif journal.finished:
        done = len(journal.finished)
        click.echo(f"resuming after {done} of {pairs} pairs in {journal.path}; delete it to start over", err=True)
