"""`specexport doctor`."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from .export_packages import lacking
from .options import JSON

if TYPE_CHECKING:
    from ..engines.base import Availability


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Show what this host can run and build.

    Says what to install for the rest.
    """
    from ..engines.catalogue import LIBRARIES
    from ..engines.registry import availabilities
    from ..engines.tensorrt.api import LEAN, library
    from ..engines.tensorrt.api import found as usable
    from ..engines.tensorrt.compile import describe_compiler

    found = availabilities() | {"tensorrt-lean": usable(lambda: library(LEAN).title), "build": _building()}
    found |= {f"compile for {engine}": usable(partial(describe_compiler, engine)) for engine in LIBRARIES}
    if as_json:
        click.echo(json.dumps({name: vars(entry) for name, entry in found.items()}))
        return
    for name, entry in found.items():
        mark = "yes" if entry.usable else "no "
        click.echo(f"{mark}  {name}: {entry.detail}{'' if entry.usable else '; ' + entry.remedy}")


def _building() -> Availability:
    from ..engines.base import Availability

    if found := lacking():
        return Availability(False, *found)
    return Availability(True, "the exporter's packages are installed")
