"""`specexport triton-repository`."""

from __future__ import annotations

from pathlib import Path
from shlex import join
from typing import Any

import click

from .options import BUNDLE


@click.command("triton-repository")
@BUNDLE
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to create.")
@click.option("--name", help="Name of the model. [default: the bundle's]")
@click.option(
    "--instances",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of processes on the CPU.",
)
@click.option("--gpu", "gpus", type=click.IntRange(0), multiple=True, help="GPU to run an instance on; repeatable.")
@click.option("--engine", help="Engine to run on. [default: the first of the bundle that the server's host can run]")
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="CPU threads per instance. [default: the engine's choice; an equal share where several share the cores]",
)
@click.option(
    "--prompt-cache-mib",
    type=click.IntRange(0),
    help="Host memory per instance for the cache rows of earlier conversations, in MiB. [default: 512 on a CPU, "
    "else 0]",
)
@click.option("--queue", type=int, default=16, show_default=True, help="Maximum waiting requests.")
@click.option(
    "--queue-timeout", type=float, default=30.0, show_default=True, help="Longest wait in the queue, in seconds."
)
@click.option(
    "--python-path",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Folder of packages for Triton's interpreter, which ignores PYTHONPATH; repeatable.",
)
@click.option("--hard-links", is_flag=True, help="Link the bundle's files instead of copying them.")
def triton_repository(bundle: Path, output: Path, **options: Any) -> None:
    """Write a model repository for Triton.

    It has two models: NAME streams one response per round, and NAME_whole returns a single response. Run it with:
    tritonserver --model-repository DIR --disable-auto-complete-config
    """
    from ..integrations.triton.options import RepositoryOptions
    from ..integrations.triton.repository import write_repository

    chosen = RepositoryOptions(**options)
    names = write_repository(bundle, output, chosen)
    click.echo(f"models {' and '.join(names)}", err=True)
    start = join(["tritonserver", "--model-repository", str(output), "--disable-auto-complete-config"])
    click.echo(f"next: {start}", err=True)
    click.echo(str(output))
