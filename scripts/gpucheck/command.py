"""The command line of `scripts/gpu_check`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
from specexport.bundle import FORMATS, PRECISIONS
from specexport.engines.base import Availability
from specexport.engines.catalogue import ENGINES
from specexport.engines.cuda.driver import Gpu, find_gpu, size_text
from specexport.engines.registry import engine_module
from specexport.errors import EngineError, ParameterError, SpecExportError

from .apart import EndedError, apart

if TYPE_CHECKING:
    from .plan import Plan
    from .report import Report
    from .timing import Spread

GPU_ENGINES = tuple(name for name, info in ENGINES.items() if info.on_gpu)
SHAPE_NAMES = ("tiny", "hybrid", "small", "demo", "1b", "8b")
NUMBERS = (*PRECISIONS, *(name for name in FORMATS if name != "float"))
OUTPUT = Path(__file__).parents[2] / "docs/measurements"


def one_of(allowed: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], list[str] | None]:
    """A click callback that parses names out of `allowed`, separated by commas."""

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
    help="Engine to check. May be repeated. [default: all usable ones]",
)
@click.option(
    "--shape",
    "shapes",
    callback=one_of(SHAPE_NAMES),
    metavar="NAME,...",
    help=f"Pairs: {', '.join(SHAPE_NAMES)}. "
    "[default: tiny, demo (small where it is missing) and the largest that fits]",
)
@click.option(
    "--precision", "precisions", callback=one_of(NUMBERS), metavar="NAME,...", default="fp16", show_default=True
)
@click.option("--quick", is_flag=True, help="Four minutes: tiny and demo, fewer samples, prompts, widths and spans.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Time limit for everything. [default: 4 with --quick, else no limit]",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder where checkpoints and bundles are kept for later runs. [default: nothing is kept]",
)
@click.option("--prepare", is_flag=True, help="Only make the checkpoints and bundles in --work; needs no GPU.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=OUTPUT,
    help="Folder for the JSON files. [default: docs/measurements]",
)
def main(engines: tuple[str, ...], output: Path, prepare: bool, **options: Any) -> None:
    """Prove and measure the GPU engines on this host.

    Builds pairs, proves that the engines give the models' own output, and then measures. Prints results as they come,
    and keeps a JSON file for each engine up to date. Exit code 1 if anything that was requested could not be proved;
    figures that miss their limits are reported, but are no failure.
    """
    say = _Clock()
    try:
        if prepare:
            _prepare(engines, options, say)
            return
        gpu = find_gpu()
        capability = ".".join(map(str, gpu.compute_capability))
        say(f"{gpu.name}, compute capability {capability}, {size_text(gpu.memory)}, driver for CUDA {gpu.driver}")
        usable = usable_engines(engines or GPU_ENGINES, say)
        reports = _check(gpu, usable, options, output, say)
    except (SpecExportError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if not all(report.passed for report in reports) or set(engines) - set(usable):
        raise SystemExit(1)


class _Clock:
    """Prints a line to stderr at once, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def __call__(self, line: str) -> None:
        click.echo(f"{perf_counter() - self._start:6.1f} s  {line}", err=True)


def usable_engines(asked: tuple[str, ...], say: Callable[[str], None]) -> dict[str, str]:
    """What was found of each engine that this host can run; says which it cannot run.

    Raises `EngineError` if it can run none.
    """
    found = {}
    for name in asked:
        try:
            found[name] = apart(_availability, name, hear=say, seconds=60)
        except EndedError as error:
            found[name] = Availability(False, f"looking at it, {error}", "see what it wrote above")
        entry = found[name]
        say(f"usable {name}: {entry.detail}" if entry.usable else f"left out {name}: {entry.detail}; {entry.remedy}")
    usable = {name: entry.detail for name, entry in found.items() if entry.usable}
    if not usable:
        raise EngineError(". ".join(f"{name}: {entry.detail}; {entry.remedy}" for name, entry in found.items()))
    return usable


def _availability(tell: Callable[[str], None], name: str) -> Availability:
    return engine_module(name).availability()


def _bandwidth(tell: Callable[[str], None], repetitions: int) -> Spread:
    from specexport.engines.cuda.device import CudaDevice

    from .measurements.bandwidth import measure_bandwidth

    device = CudaDevice()
    try:
        return measure_bandwidth(device, repetitions)
    finally:
        device.close()


def _plan(options: dict[str, Any], default: Callable[[bool], list[str]]) -> Plan:
    """The plan for the command's options. default: the shapes if none were requested, by whether it must be quick."""
    from .plan import Plan
    from .presets import FULL, QUICK
    from .shapes import has_demo_pair

    effort = QUICK if options["quick"] else FULL
    shapes = options["shapes"] or default(options["quick"])
    if "demo" in shapes and not has_demo_pair():
        raise ParameterError("this checkout has no examples/demo_pair; take --shape small, a random pair of its sizes")
    seconds = effort.seconds if options["minutes"] is None else 60 * options["minutes"]
    return Plan(shapes, options["precisions"], effort, seconds, options["work"])


def _prepare(engines: tuple[str, ...], options: dict[str, Any], say: Callable[[str], None]) -> None:
    from .check import prepare

    if options["work"] is None:
        raise ParameterError("--prepare leaves bundles in a folder; name it by --work")
    prepare(_plan(options, lambda quick: ["tiny", "small"]), engines or ("onnxruntime-cuda",), say)


def _check(
    gpu: Gpu, engines: dict[str, str], options: dict[str, Any], output: Path, say: Callable[[str], None]
) -> list[Report]:
    from .check import check
    from .environment import environment
    from .report import Report, render
    from .shapes import default_shapes

    plan = _plan(options, lambda quick: default_shapes(gpu, options["precisions"][0], quick))
    bandwidth = apart(_bandwidth, plan.effort.repetitions, hear=say, seconds=60)
    say(f"copies {bandwidth.median / 1e9:.0f} GB/s, reads and writes counted")
    command, facts = shlex.join(["scripts/gpu_check", *sys.argv[1:]]), environment(gpu)
    reports = {name: Report(name, found, command, facts, bandwidth) for name, found in engines.items()}
    check(plan, reports, output, say)
    click.echo("\n\n".join(render(report) for report in reports.values()))
    for report in reports.values():
        say(f"written to {output / report.file_name}")
    return list(reports.values())
