"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..bundle.drafts import DRAFTERS_HELP

if TYPE_CHECKING:
    from ..engines.tensorrt.compile import CompileOptions

BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
RUNNING = (
    click.option("--engine", help="Engine to run on. [default: the first of the bundle that this host can run]"),
    click.option(
        "--threads",
        type=click.IntRange(0),
        default=0,
        help="CPU threads, 0 for the engine's choice; more than the host has cores are slower. "
        "[default: the engine's choice]",
    ),
    click.option("--device", type=click.IntRange(0), help="GPU index, from 0. [default: the first GPU]"),
)
DRAFTER = click.option(
    "--drafter",
    help=f"{DRAFTERS_HELP} [default: the policy's where calibrated, else model if the bundle has one, else ngram]",
)
SKIP_INVALID = click.option("--skip-invalid", is_flag=True, help="Skip invalid lines instead of refusing the file.")
LIMIT = click.option("--limit", type=click.IntRange(1), help="Maximum requests per route. [default: all]")
MAX_NEW_TOKENS = click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Maximum new tokens, unless a prompt's line says otherwise.",
)
TOP_K = click.option("--top-k", type=int, default=0, show_default=True, help="0 is off.")
TOP_P = click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off.")
SEED = click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
CHAT_TEMPLATE = click.option(
    "--chat-template", type=click.Path(path_type=Path), help="File with a chat template. [default: the bundle's]"
)
MIN_OVERLAP = click.option(
    "--min-overlap",
    type=float,
    default=0.5,
    show_default=True,
    help="Draft with another tokenizer: minimum share of the calibration prompts' tokens that it must know.",
)
CACHE = click.option("--cache", type=click.Path(path_type=Path), help="Build cache. [default: ~/.cache/specexport]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

# Of `build` and `compile`, for engines that run plans.
COMPILING = (
    click.option(
        "--compute-capability",
        "compute_capabilities",
        multiple=True,
        metavar="X.Y",
        help="TensorRT-RTX: compute capability to compile for; repeatable. [default: the library's choice]",
    ),
    click.option(
        "--hardware-compatible",
        is_flag=True,
        help="TensorRT: plans run on every GPU of compute capability 8.0 or later, somewhat slower.",
    ),
    click.option("--version-compatible", is_flag=True, help="TensorRT: plans run with the lean runtime too."),
    click.option("--weight-streaming", is_flag=True, help="Allow weights in host memory if GPU memory is too small."),
    click.option(
        "--timing-cache",
        type=click.Path(path_type=Path),
        help="TensorRT: file of kernel timings that later builds reuse.",
    ),
)


def running(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options for where a session runs. The command gets them as one `where`: keywords of `load`."""

    @wraps(command)
    def run(*, engine: str | None, threads: int, device: int | None, **others: Any) -> None:
        command(where={"engine": engine, "threads": threads, "device": device}, **others)

    for option in reversed(RUNNING):
        run = option(run)
    return run


def compiling(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `CompileOptions`."""
    for option in reversed(COMPILING):
        command = option(command)
    return command


def compile_options(options: dict[str, Any]) -> CompileOptions:
    """Removes the compile options from `options` and returns them."""
    from ..engines.tensorrt.compile import CompileOptions

    return CompileOptions(**{field.name: options.pop(field.name) for field in fields(CompileOptions)})
