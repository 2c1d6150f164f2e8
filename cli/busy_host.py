"""A warning before times are measured."""

from __future__ import annotations

import os

import click

# Processes beyond one for every CPU that are not worth a warning: the load counts the last minute, and this command.
SPARE = 0.5


def note_busy_host() -> None:
    """Says on stderr that other processes need the CPUs, if they do."""
    from ..engines.cpus import allowed_cpus

    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return
    cpus = len(allowed_cpus())
    if load > cpus + SPARE:
        click.echo(
            f"this host is busy: {load:.1f} processes want to run on {cpus} CPU{'s' * (cpus > 1)}, so times vary more "
            "than these figures say; fewer --threads may be faster here",
            err=True,
        )
