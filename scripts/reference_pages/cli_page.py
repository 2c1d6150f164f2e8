"""docs/cli.md, from the command line's own help."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable

import click
from specexport.cli import main

from .markdown import table, wrap

INTRODUCTION = """\
# The command line

For users of the command `specexport`: every command with its options. Written by `scripts/write_reference` from the
commands' own help; do not edit.

Results go to stdout, progress and messages to stderr. `NO_COLOR` is respected. Exit codes: 0: success. 1: the work or a
check failed, for example on a damaged bundle. 2: the command line is wrong, or a file, model or address that it names
is missing, of another kind, in use, already there, or cannot be written. 130: interrupted (`serve`: 0, or 1 if requests
were cut off or a second signal came). The command is in the extra `cli`, which [others
include](quickstart-cpu.md#extras).

Prompt files (`--prompts`) are JSONL, one request per line. `bench`, `calibrate` and `tune` need a `route` in each line,
the kind of request. `max_new_tokens` is optional:

    {"route": "code", "prompt": "def main():"}
    {"route": "support", "messages": [{"role": "user", "content": "My order is late."}], "max_new_tokens": 200}
"""
HEADS = ("option", "meaning", "default")
Row = tuple[str, str, str]


def names(option: click.Option, context: click.Context) -> str:
    value = "" if option.is_flag else " " + option.make_metavar(context).removesuffix(" RANGE")
    return ", ".join([*(f"`{name}`" for name in option.opts[:-1]), f"`{option.opts[-1]}{value}`"])


def meaning_and_default(option: click.Option) -> tuple[str, str]:
    text = option.help or ""
    written = re.search(r"\s*\[default: (.*)\]$", text)
    if written:
        return text[: written.start()], written[1]
    if option.required:
        return text, "required"
    default = option.default if not isinstance(option.default, list | tuple) else " ".join(option.default)
    shown = isinstance(default, int | float | str) and default != "" and not option.is_flag
    return text, f"`{default}`" if shown and option.show_default is not False else ""


def rows_of(command: click.Command) -> list[Row]:
    context = click.Context(command, info_name=f"specexport {command.name}")
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [(names(option, context), *meaning_and_default(option)) for option in options]


def common_of(commands: Iterable[click.Command]) -> list[Row]:
    """What two commands or more have alike; of several options with one name, that of most commands."""
    found = Counter(row for command in commands for row in rows_of(command))
    common = {flag(row): row for row, times in reversed(found.most_common()) if times > 1}
    return [common[name] for name in sorted(common)]


def flag(row: Row) -> str:
    return row[0].split("`")[1].split()[0]


def section(command: click.Command, common: Collection[Row]) -> str:
    context = click.Context(command, info_name=f"specexport {command.name}")
    arguments = [param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)]
    usage = " ".join([f"specexport {command.name}", "[OPTIONS]", *arguments])
    parts = [f"## specexport {command.name}", f"    {usage}"]
    parts += map(wrap, inspect.cleandoc(command.help or "").split("\n\n"))
    rows = rows_of(command)
    if own := [row for row in rows if row not in common]:
        parts.append(table(HEADS, own))
    if shared := [f"`{flag(row)}`" for row in rows if row in common]:
        parts.append(wrap(f"[Common options](#common-options): {', '.join(shared)}."))
    return "\n\n".join(parts)


def render() -> str:
    commands = [main.commands[name] for name in sorted(main.commands)]
    common = common_of(commands)
    links = wrap(f"Commands: {', '.join(f'[`{one.name}`](#specexport-{one.name})' for one in commands)}.")
    options = f"## Common options\n\n{table(HEADS, common)}"
    return "\n\n".join([INTRODUCTION.rstrip(), links, options, *(section(one, common) for one in commands)]) + "\n"
