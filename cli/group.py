"""The command group, how it reports errors, and the standard streams.

Piped text is UTF-8, what a terminal cannot show is replaced, and readers may leave.
"""

from __future__ import annotations

import codecs
import os
import sys
import warnings
from io import TextIOWrapper
from typing import Any

import click
from click.shell_completion import get_completion_class

from ..errors import SpecExportError
from ..version import VERSION
from .doctor import EXPORTER_EXTRA

REPLACING = "specexport-replacing"
SURROGATES = range(0xDC80, 0xDD00)  # how Python keeps the undecodable bytes of file names


class Commands(click.Group):
    """Ends a user's mistake in one line on stderr and exit code 1, and an interrupt with 130, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                # Of one library to another: nothing that a user could do.
                warnings.filterwarnings("ignore", ".* is deprecated and will be removed in version", FutureWarning)
                return super().invoke(ctx)
        except SpecExportError as error:
            raise click.ClickException(str(error)) from None
        except ImportError as error:
            name, reason = error.name or "a package", str(error).partition("\n")[0]
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
        except BrokenPipeError:
            drop()
            raise SystemExit(1) from None
        except OSError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="specexport")
def main() -> None:
    """Compiled speculative decoding at batch 1."""


def use_utf8() -> None:
    """Piped input is UTF-8 whatever the locale, as files are; a terminal types in its own encoding.

    Output keeps the encoding of the locale, and no character ends it: what the encoding lacks becomes a question mark.
    """
    codecs.register_error(REPLACING, _replaced)
    if isinstance(sys.stdin, TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=REPLACING)


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """A handler for codecs. Bytes of file names stay what they are, so that a script finds the file."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    return bytes(code - 0xDC00 if code in SURROGATES else ord("?") for code in codes), error.end


def drop() -> None:
    """Sends further output nowhere once nobody reads it, so that Python's own flush at exit does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion in a shell.

    \b
    bash: eval "$(specexport completion bash)" in ~/.bashrc
    zsh:  eval "$(specexport completion zsh)" in ~/.zshrc
    fish: specexport completion fish > ~/.config/fish/completions/specexport.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "specexport", "_SPECEXPORT_COMPLETE").source())
