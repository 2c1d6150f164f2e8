"""A warning before times are measured."""

from __future__ import annotations

import os

import click

# Processes beyond one for every CPU that are not worth a warning: the load counts the last minute, and this command.
SPARE = 0.5


def note_busy_host() -> None:
    """Says on stderr that other processes need the CPUs, if they do."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return
    cpus = os.cpu_count() or 1
    if load > cpus + SPARE:
        click.echo(
            f"this host may be busy: its load over the last minute is {load:.1f} on {cpus} CPU{'s' * (cpus > 1)}, so "
            "times vary more than usual; fewer --threads may be faster",
            err=True,
        )
