"""The command group, how it reports errors, how a command is recorded, and the standard streams.

Piped text is UTF-8, what a terminal cannot show is replaced, and readers may leave.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import click
from click.shell_completion import get_completion_class

from ..errors import ParameterError, SpecExportError, reason_of
from ..runtime.hub import name_of
from ..version import VERSION
from .doctor import EXPORTER_EXTRA

# Of a write to stdout that cannot be done.
UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)
# Codes of errors that say that what an option or argument names is not there, is something else, or is taken.
OF_THE_COMMAND_LINE = ("bundle_not_found", "checkpoint_not_found", "output_exists", "in_use", "cannot_listen")
# Before a path in a command: an option joined to its value, and the name of a draft.
PREFIX = re.compile(r"(--[\w-]+=|-[a-zA-Z](?=[~./\\]))?([\w.-]+=)?", re.ASCII)
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


class WrongOptionError(click.ClickException):
    exit_code = 2


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What click refuses, for which it has four lines."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
        message = " ".join(error.format_message().split()).removesuffix(".")
        if isinstance(kind, click.IntRange | click.FloatRange):
            # click would say "a valid integer range".
            what = "an integer" if isinstance(kind, click.IntRange) else "a number"
            most = f"to {kind.max}" if kind.max is not None else "on"
            message = message.replace(f"a valid {kind.name}", f"{what} from {kind.min} {most}")
        if error.ctx is not None and isinstance(error, click.NoSuchOption | click.MissingParameter):
            message += f" (see {error.ctx.command_path} --help)"
        raise WrongOptionError(message) from None


class Commands(click.Group):
    """Ends a user's mistake in one line on stderr and exit code 1 or 2, and an interrupt with 130: no traceback."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _in_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _in_one_line(), warnings.catch_warnings():
                # Of one library to another: nothing that a user could do.
                warnings.filterwarnings("ignore", ".* is deprecated and will be removed in version", FutureWarning)
                return super().invoke(ctx)
        except SpecExportError as error:
            raise refusal(error, self.commands.get(ctx.invoked_subcommand or "")) from None
        except ImportError as error:
            name, reason = error.name or "a package", reason_of(error)
            if name.startswith("specexport"):
                raise
            if isinstance(error, ModuleNotFoundError) and error.name and "." not in name:
                message = f"the package {name} is not installed; building needs: {EXPORTER_EXTRA}"
            else:
                message = f"{name.partition('.')[0]} is installed, but cannot be imported: {reason}; install it again"
            raise click.ClickException(message) from None
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            raise SystemExit(130) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends a command whose reader went away
            reason = error.strerror or str(error).partition("\n")[0]
            if error.filename is not None:
                raise click.ClickException(f"{error.filename}: {reason}") from None
            if error.errno not in UNWRITABLE:
                raise click.ClickException(reason) from None
            _discard_output()
            raise click.ClickException(f"the output cannot be written: {reason}") from None


def refusal(error: SpecExportError, command: click.Command | None) -> click.ClickException:
    """The error in one line that calls parameters by their options. Exit code 2 where the command line is wrong, as for
    what click itself refuses; 1 where the work failed.
    """
    message = str(error)
    given = command.params if command else []
    field = (error.field or "").replace("_", "-")
    wrong = next((one for one in given if error.field == one.name or f"--{field}" in one.opts), None)
    for option in given if wrong else ():
        name = str(option.name)  # a word only where it is the subject, and nothing within what the user gave
        if isinstance(option, click.Option) and ("_" in name or option is wrong):
            subject = rf"^{name}\b|(?<!the )(?<!\S){name}(?= (is|are|must|has)\b)"
            message = re.sub(rf"(?<!\S){name}(?![^\s;,])" if "_" in name else subject, option.opts[-1], message)
    if wrong or isinstance(error, ParameterError) or error.code in OF_THE_COMMAND_LINE:
        return WrongOptionError(message)
    return click.ClickException(message)


@click.group("specexport", cls=Commands, context_settings=SETTINGS)
@click.version_option(VERSION, prog_name="specexport")
def main() -> None:
    """Speculative decoding for one user at a time: build bundles, check, calibrate, run and serve them."""


def use_utf8() -> None:
    """Piped input is UTF-8 whatever the locale, as files are; a terminal types in its own encoding.

    Output keeps the encoding of the locale, and no character ends it: what the encoding lacks becomes a question mark.
    """
    if isinstance(sys.stdin, TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


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


def _discard_output() -> None:
    """Where it cannot be written, so that Python's flush at exit does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion in your shell.

    \b
    bash: eval "$(specexport completion bash)" in ~/.bashrc
    zsh:  eval "$(specexport completion zsh)" in ~/.zshrc
    fish: specexport completion fish > ~/.config/fish/completions/specexport.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "specexport", "_SPECEXPORT_COMPLETE").source())
