"""`specexport inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .options import BUNDLE, JSON


@click.command()
@BUNDLE
@JSON
def inspect(bundle: Path, as_json: bool) -> None:
    """Show what a bundle contains.

    Models, graphs, memory, proofs, policy and digests.
    """
    from ..bundle import Bundle
    from ..runtime.describe import describe, render

    description = describe(Bundle.open(bundle))
    click.echo(json.dumps(description, indent=1) if as_json else render(description))
