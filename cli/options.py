"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..engines.tensorrt.compile import CompileOptions

BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
ENGINE = click.option("--engine", help="Engine to run on; by default the first usable one of the bundle.")
THREADS = click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="Threads of the engine; 0 leaves it to the engine."
)
DRAFTER = click.option(
    "--drafter", help="model, ngram, suffix, ngram+model or suffix+model. [default: the model, ngram without one]"
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

# Of `build` and `compile`, for engines that run plans.
COMPILING = (
    click.option(
        "--compute-capability",
        "compute_capabilities",
        multiple=True,
        metavar="X.Y",
        help="TensorRT-RTX: compile for GPUs of this one; may be repeated. [default: the library's choice]",
    ),
    click.option(
        "--hardware-compatible", is_flag=True, help="TensorRT: plans for every GPU from 8.0 on, at some cost in speed."
    ),
    click.option("--version-compatible", is_flag=True, help="TensorRT: plans for the lean runtime too."),
    click.option(
        "--weight-streaming", is_flag=True, help="Weights may stay in host memory where the GPU's is too small."
    ),
    click.option(
        "--timing-cache",
        type=click.Path(path_type=Path),
        help="TensorRT: file of measurements that later builds reuse.",
    ),
)


def compiling(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `CompileOptions`."""
    for option in reversed(COMPILING):
        command = option(command)
    return command


def compile_options(options: dict[str, Any]) -> CompileOptions:
    """Takes what belongs to them out of `options`."""
    from ..engines.tensorrt.compile import CompileOptions

    return CompileOptions(**{field.name: options.pop(field.name) for field in fields(CompileOptions)})
