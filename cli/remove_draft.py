"""`specexport remove-draft`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import BUNDLE


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
