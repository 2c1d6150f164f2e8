"""What a bundle was made of, in names alone: paths tell strangers who built it, and where."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from .hub import ON_HUB

# An option joined to its value, and the name of a draft.
PREFIX = re.compile(r"(--[\w-]+=|-[a-zA-Z](?=[~./\\]))?([\w.-]+=)?", re.ASCII)


def name_of(source: str) -> str:
    """A hub id as it is; of a folder or file, whether it is still there or not, the last part of its path."""
    there = os.path.lexists(os.path.expanduser(source))  # noqa: PTH111 - of Path, it refuses an unknown user
    if not there and ON_HUB.fullmatch(source.partition(":")[0]):
        return source
    if source.strip("./\\") == "":  # such as `..`
        source = os.path.abspath(source)  # noqa: PTH100 - the name, not what a link leads to
    return re.split(r"[/\\]", source.rstrip("/\\"))[-1] or source


def command_line(arguments: Sequence[str]) -> str:
    """The command with these arguments, each path reduced to its name."""
    return shlex.join(["specexport", *map(_reduced, arguments)])


def _reduced(argument: str) -> str:
    if not re.search(r"[/\\~]", argument):
        return argument
    match = PREFIX.match(argument)
    assert match is not None
    option, name = match[1] or "", match[2] or ""
    value = argument[len(option) :]
    if name and not os.path.lexists(value):
        return option + name + name_of(value[len(name) :])
    return option + name_of(value)
