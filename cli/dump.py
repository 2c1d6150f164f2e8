"""`specexport dump`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import BUNDLE


@click.command()
@BUNDLE
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the files.")
@click.option("--model", default="target", show_default=True, help="target, draft, or the name of a draft.")
@click.option("--dialect", help="Dialect of the graph: ort, onnx or rows. [default: the model's first]")
@click.option("--step", type=int, help="Which pass of the proof, from 0. [default: the last]")
def dump(bundle: Path, output: Path, model: str, dialect: str | None, step: int | None) -> None:
    """Write a pass's inputs for polygraphy.

    The inputs of one graph in one pass of its proof, cached rows included, and the logits of the Hugging Face model:
    see docs/debugging.md.
    """
    from ..bundle import Bundle
    from ..exporter.proving.dump_pass import choose_model

    choose_model(Bundle.open(bundle, check_digests=False), model)  # refused before gigabytes are read
    from ..exporter.proving.dump_pass import dump_pass, write_pass

    dumped = dump_pass(Bundle.open(bundle), model, dialect, step)
    write_pass(dumped, output)
    click.echo(
        f"step {dumped.step} of 0 to {dumped.steps - 1}: {dumped.tokens} tokens at position {dumped.position}; try:",
        err=True,
    )
    for command in dumped.commands(output):
        click.echo(f"  {command}", err=True)
    click.echo(str(output))
