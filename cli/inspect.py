"""`specexport inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .options import BUNDLE, JSON


@click.command()
@BUNDLE
@click.option("--files", is_flag=True, help="Also list files with sizes and digests, and packages.")
@JSON
def inspect(bundle: Path, files: bool, as_json: bool) -> None:
    """Show what a bundle contains.

    Models, memory, proofs and what calibration decided. --json has everything.
    """
    from ..bundle import Bundle
    from ..runtime.describe import describe, render, render_files
    from ..runtime.hub import local_bundle

    description = describe(Bundle.open(local_bundle(bundle)))
    click.echo(json.dumps(description.as_dict(), indent=1) if as_json else render(description))
    if files and not as_json:
        click.echo(render_files(description.manifest))
