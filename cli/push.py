"""`specexport push`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import BUNDLE


@click.command()
@BUNDLE
@click.argument("repository", metavar="ORG/NAME")
@click.option("--private", is_flag=True, help="If the repository is new, make it private.")
def push(bundle: Path, repository: str, private: bool) -> None:
    """Upload a bundle to the Hugging Face hub.

    specexport.load and the commands that run or inspect a bundle then take ORG/NAME instead of a folder. What was
    calibrated on this host stays here. Log in first: hf auth login.
    """
    from ..bundle import Bundle
    from ..editing.push import push as upload

    click.echo(upload(Bundle.open(bundle), repository, private))
