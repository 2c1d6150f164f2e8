"""`specexport doctor`, and what `build` needs in addition to the runtime."""

from __future__ import annotations

import json
import platform
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from ..engines.catalogue import version_numbers
from .options import JSON

if TYPE_CHECKING:
    from ..engines.base import Availability


EXPORTER_EXTRA = "pip install 'specexport[export]'"
TUNING = ("torch", "transformers", "safetensors")  # of PACKAGES, those of the extra `tune`
OLDEST_PYTHON = (3, 11)
NO_DOCSTRINGS = 2  # as -OO and PYTHONOPTIMIZE=2 set it
# The extra `export`, as pyproject.toml has it; a test compares the two.
PACKAGES = {
    "torch": ">=2.10,<3",
    "transformers": ">=5.0,<6",
    "safetensors": ">=0.5",
    "onnx": ">=1.20",
    "onnx-ir": ">=1.1",
    "onnxscript": ">=0.6",
    "onnxruntime": ">=1.24",
}


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Show what this host can run and build.

    Says what to install for the rest.
    """
    from ..engines.catalogue import LIBRARIES
    from ..engines.onnxruntime import kernels
    from ..engines.registry import availabilities
    from ..engines.tensorrt.api import LEAN, library
    from ..engines.tensorrt.api import found as probe
    from ..engines.tensorrt.compile import describe_compiler

    rows = availabilities() | {"kernels": kernels.availability()}
    rows |= {"tensorrt-lean": probe(lambda: library(LEAN).title), "build": _building()}
    rows |= {f"compile for {engine}": probe(partial(describe_compiler, engine)) for engine in LIBRARIES}
    if as_json:
        click.echo(json.dumps({name: vars(entry) for name, entry in rows.items()}))
        return
    for name, entry in rows.items():
        mark = "yes" if entry.usable else "no "
        click.echo(f"{mark}  {name}: {entry.detail}{'' if entry.usable else '; ' + entry.remedy}")


def _building() -> Availability:
    from ..engines.base import Availability

    if reasons := lacking():
        return Availability(False, *reasons)
    return Availability(True, "the exporter's packages are installed")


def require_packages(extra: str = "export") -> None:
    """Raises `click.ClickException` where this host cannot load models for `build`, or with `tune` for that."""
    if reasons := lacking(extra):
        raise click.ClickException("; ".join(reasons))


def lacking(extra: str = "export") -> tuple[str, str] | None:
    """What keeps this host from building and what to do about it, or None if nothing does."""
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        reason = f"building needs Python {oldest} or newer, this is {platform.python_version()}"
        return reason, "build where there is one and copy the bundle here, where it runs"
    if sys.flags.optimize >= NO_DOCSTRINGS:
        reason = "building needs docstrings, which transformers reads, and this Python runs without them"
        return reason, "leave out -OO, or unset PYTHONOPTIMIZE (1 and -O are allowed)"
    needed = TUNING if extra == "tune" else tuple(PACKAGES)
    wrong = [f"{name}{PACKAGES[name]} ({reason})" for name in needed if (reason := _unfit(name, PACKAGES[name]))]
    if not wrong:
        return None
    return f"building needs {', '.join(wrong)}", EXPORTER_EXTRA.replace("export]", f"{extra}]")


def _unfit(name: str, wanted: str) -> str:
    """What is there instead of a version within `>=floor,<ceiling`, or nothing."""
    if find_spec(name.replace("-", "_")) is None:
        return "not installed"
    try:
        installed = version_numbers(version(name))
    except PackageNotFoundError:  # installed under another name, as onnxruntime-gpu is
        return ""
    floor, _, ceiling = wanted.removeprefix(">=").partition(",<")
    fits = version_numbers(floor) <= installed and (not ceiling or installed < version_numbers(ceiling))
    return "" if fits else f"found {version(name)}"
