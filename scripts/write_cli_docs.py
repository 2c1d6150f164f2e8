"""Writes docs/cli.md from the command line's own help: `scripts/write_cli_docs`. A test fails if it is out of date."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import click
from specexport.cli import main

PAGE = Path(__file__).resolve().parent.parent / "docs/cli.md"
WIDTH = 120
INTRODUCTION = """\
# The command line

Written by `scripts/write_cli_docs` from the commands' own help; do not edit.

Results go to stdout, progress and messages to stderr. `--json` prints one JSON object instead of text. `NO_COLOR` is
respected. A mistake ends in one line that says what was found, what was expected and what to do. Exit codes: 0 for
success; 2 where the command line is wrong: an unknown option, a value that an option or argument cannot have, also with
this bundle, a file or folder that is missing, not what it should be, or taken; 1 where the work or a check failed; 130
when interrupted. The command needs the extra `cli`, which `export`, `serve` and others include
([all extras](quickstart-cpu.md#extras)).

Prompt files (`--prompts`) are JSONL, one request per line. `route` says what kind of request it is: `bench` and
`calibrate` need one in every line, and the same in all of them will do. `max_new_tokens` is optional:

    {"route": "code", "prompt": "def main():"}
    {"route": "support", "messages": [{"role": "user", "content": "My order is late."}], "max_new_tokens": 200}
"""


def wrap(text: str) -> str:
    r"""A paragraph of help in Markdown; one that click leaves unwrapped, after `\b`, becomes a block of code."""
    if text.startswith("\b\n"):
        return textwrap.indent(inspect.cleandoc(text[2:]), "    ")
    return textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False, break_long_words=False)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


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


def section(command: click.Command) -> str:
    context = click.Context(command, info_name=f"specexport {command.name}")
    arguments = [param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)]
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    rows = []
    for option in command.params:
        if isinstance(option, click.Option):
            meaning, default = meaning_and_default(option)
            rows.append(f"| {cell(names(option, context))} | {cell(meaning)} | {cell(default)} |")
    usage = " ".join([f"specexport {command.name}", "[OPTIONS]", *arguments])
    table = ["| option | meaning | default |", "|---|---|---|", *rows]
    return "\n\n".join([f"## specexport {command.name}", f"    {usage}", *map(wrap, paragraphs), "\n".join(table)])


def render() -> str:
    commands = [main.commands[name] for name in sorted(main.commands)]
    overview = ["| command | |", "|---|---|"]
    overview += [
        f"| [`{command.name}`](#specexport-{command.name}) | {cell(command.get_short_help_str(200))} |"
        for command in commands
    ]
    return "\n\n".join([INTRODUCTION + "\n" + "\n".join(overview), *map(section, commands)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE)
