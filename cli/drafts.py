"""`specexport add-draft` and `remove-draft`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import click

from .doctor import lacking
from .options import BUNDLE, CACHE, MIN_OVERLAP
from .progress import time_lines


@click.command("add-draft")
@BUNDLE
@click.option(
    "--draft",
    required=True,
    metavar="[NAME=]MODEL",
    help="Draft model: a checkpoint folder, a GGUF file, or either on the hub. NAME is what requests call it.",
)
@click.option("--name", help="NAME as an option of its own. [default: the last part of the path]")
@click.option("--draft-precision", "precision", help="Weight precision. [default: that of the bundle's first draft]")
@MIN_OVERLAP
@click.option(
    "--calibration-prompts",
    "calibration_texts",
    type=click.Path(path_type=Path),
    help="int8, int4: calibration data, JSONL of prompts, at least 512 tokens. [default: a built-in set]",
)
@CACHE
def add_draft(bundle: Path, draft: str, name: str | None, **options: Any) -> None:
    """Add a draft to a bundle.

    Replaces a draft of the same name. Exports and proves only this draft; the target and other drafts stay as they are.
    Requests choose it with --drafter NAME, and specexport calibrate measures it with the others.
    """
    start = perf_counter()
    if reasons := lacking():
        raise click.ClickException("; ".join(reasons))
    from ..bundle import Bundle
    from ..editing.display import BuildDisplay
    from ..editing.progress import Timed
    from ..exporter.options import LOOKUP, UNNAMED, parse_draft

    if draft == LOOKUP:
        raise click.ClickException(
            "--draft is lookup, which is no model: every bundle can draft by lookups; use --drafter ngram"
        )

    named = parse_draft(draft, name)
    if named.name == UNNAMED and named.source == draft and name is None and Path(draft).name != UNNAMED:
        raise click.ClickException(f"found no usable name for the draft in {draft}; give one with --name")
    with BuildDisplay() as display:
        timed = Timed(display)
        with timed.stage("check the bundle", 1):
            opened = Bundle.open(bundle)
        with timed.stage("import packages", 1):
            from ..exporter.additional_drafts import AddOptions
            from ..exporter.additional_drafts import add_draft as add

        report = add(opened, named, AddOptions(**options), display)
    for line in time_lines((*timed.times, *report.times), perf_counter() - start):
        click.echo(line, err=True)
    for proof in report.bundle.manifest.draft_called(named.name).model.proofs:
        click.echo(
            f"proved {named.name} {proof.dialect}: {proof.rows} rows up to {proof.length} tokens, "
            f"{proof.measure} (allowed {proof.limit})",
            err=True,
        )
    drafts = ", ".join(report.bundle.manifest.draft_names)
    click.echo(f"{bundle} has the drafts {drafts}; specexport calibrate measures where each one pays", err=True)
    click.echo(str(bundle))


@click.command("remove-draft")
@BUNDLE
@click.option("--draft", "name", required=True, metavar="NAME", help="Name of the draft.")
def remove_draft(bundle: Path, name: str) -> None:
    """Remove a draft from a bundle.

    The first draft cannot be removed. Calibration results are removed too; target and other drafts stay as they are.
    """
    from ..bundle import Bundle
    from ..editing.replace_manifest import remove_draft as remove
    from ..runtime.policy.routes import POLICY

    opened = Bundle.open(bundle)
    calibrated = opened.path(POLICY).exists()
    left = remove(opened, name)
    click.echo(f"removed {name}; left: {', '.join(left.manifest.draft_names)}", err=True)
    if calibrated:
        click.echo("the calibration may have used it and was removed; run specexport calibrate again", err=True)
    click.echo(str(bundle))
