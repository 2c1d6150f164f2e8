"""Commands on a finished bundle: `specexport inspect`, `compile` and `push`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import BUNDLE, JSON, compile_options, compiling


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


@click.command("compile")
@BUNDLE
@click.option("--engine", required=True, help="tensorrt (for this host's GPU) or tensorrt-rtx.")
@compiling
def compile_plans(bundle: Path, engine: str, **options: Any) -> None:
    """Compile a bundle's graphs for TensorRT.

    Run it on the device that will run the bundle; for tensorrt-rtx, any host will do. Replaces the bundle's plans for
    that engine. Needs neither torch nor the checkpoints.
    """
    from ..bundle import Bundle
    from ..editing.display import BuildDisplay

    with BuildDisplay() as display:
        from ..editing.compile import compile_bundle

        chosen = compile_options(options)
        with display.stage("check the bundle", 1):
            opened = Bundle.open(bundle, without_plans=engine)
        manifest = compile_bundle(opened, engine, chosen, display).manifest
    plans = [plan for plan in manifest.plans if plan.engine == engine]
    size = sum(manifest.files[plan.file].bytes for plan in plans)
    click.echo(f"{len(plans)} plans by {engine} {plans[0].version}, {size / 1e6:.1f} MB", err=True)
    click.echo(str(bundle))


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
