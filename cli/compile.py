"""`specexport compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import BUNDLE, compile_options, compiling


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
