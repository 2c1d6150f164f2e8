"""The command line of `scripts/gpu_check`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from specexport.bundle import FORMATS, PRECISIONS
from specexport.engines.cuda.driver import Gpu, find_gpu
from specexport.engines.registry import ENGINES, engine_module
from specexport.errors import EngineError, SpecExportError

if TYPE_CHECKING:
    from .report import Report

CPU_ENGINE = "onnxruntime"
GPU_ENGINES = tuple(name for name in ENGINES if name != CPU_ENGINE)
SHAPE_NAMES = ("tiny", "demo", "1b", "8b")
NUMBERS = (*PRECISIONS, *(name for name in FORMATS if name != "float"))
OUTPUT = Path(__file__).parents[2] / "docs/measurements"


def one_of(allowed: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], list[str] | None]:
    """Takes names of the list apart, separated by commas."""

    def names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
        if value is None:
            return None
        found = list(dict.fromkeys(value.split(",")))
        for entry in found:
            if entry not in allowed:
                raise click.BadParameter(f"{entry!r} is none of {', '.join(allowed)}")
        return found

    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(GPU_ENGINES),
    help="May be repeated. [default: all usable ones]",
)
@click.option(
    "--shape",
    "shapes",
    callback=one_of(SHAPE_NAMES),
    metavar="NAME,...",
    help=f"Pairs: {', '.join(SHAPE_NAMES)}. [default: tiny, demo and the largest that fits]",
)
@click.option(
    "--precision", "precisions", callback=one_of(NUMBERS), metavar="NAME,...", default="fp16", show_default=True
)
@click.option("--quick", is_flag=True, help="A few minutes: tiny and demo, fewer samples, prompts, widths and spans.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=OUTPUT,
    help="Folder of the JSON files. [default: docs/measurements]",
)
def main(engines: tuple[str, ...], shapes: list[str] | None, precisions: list[str], quick: bool, output: Path) -> None:
    """Prove and measure the GPU engines on this host.

    Builds pairs, proves that the engines give the models' own output, and then measures. Writes a JSON file for each
    engine. Exit code 1 if anything that was asked for could not be proved; what is slower than asked is said, and fails
    nothing.
    """
    try:
        gpu = find_gpu()
        usable = usable_engines(engines or GPU_ENGINES)
        reports = _check(gpu, usable, shapes, precisions, quick, output)
    except (SpecExportError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the package {error.name} is not installed; building needs: pip install 'specexport[export]'"
        ) from None
    if not all(report.passed for report in reports) or set(engines) - set(usable):
        raise SystemExit(1)


def usable_engines(asked: tuple[str, ...]) -> dict[str, str]:
    """What was found of each engine that this host can run; says which it cannot.

    Raises `EngineError` where there is none.
    """
    found = {name: engine_module(name).availability() for name in asked}
    reasons = [f"{name}: {entry.detail}; {entry.remedy}" for name, entry in found.items() if not entry.usable]
    if len(reasons) == len(found):
        raise EngineError(". ".join(reasons))
    for reason in reasons:
        click.echo(f"left out {reason}", err=True)
    return {name: entry.detail for name, entry in found.items() if entry.usable}


def _check(
    gpu: Gpu, engines: dict[str, str], shapes: list[str] | None, precisions: list[str], quick: bool, output: Path
) -> list[Report]:
    from specexport.engines.cuda.device import CudaDevice

    from .check import Plan, check
    from .environment import environment
    from .measurements.bandwidth import measure_bandwidth
    from .presets import FULL, QUICK
    from .report import Report, render
    from .shapes import default_shapes

    effort = QUICK if quick else FULL
    device = CudaDevice()
    try:
        bandwidth = measure_bandwidth(device, effort.repetitions)
    finally:
        device.close()
    command, facts = shlex.join(["scripts/gpu_check", *sys.argv[1:]]), environment(gpu)
    reports = {name: Report(name, found, command, facts, bandwidth) for name, found in engines.items()}
    plan = Plan(shapes or default_shapes(gpu, precisions[0], quick), precisions, effort)
    check(plan, reports, output, lambda line: click.echo(line, err=True))
    click.echo("\n\n".join(render(report) for report in reports.values()))
    for report in reports.values():
        click.echo(f"written to {output / report.file_name}", err=True)
    return list(reports.values())
