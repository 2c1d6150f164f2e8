"""The standard streams: piped text is UTF-8, what a terminal cannot show is replaced, and readers may leave."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper
from typing import TextIO

import click

REPLACING = "specexport-replacing"
SURROGATES = range(0xDC80, 0xDD00)  # how Python keeps the undecodable bytes of file names


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


def text_of(file: TextIO) -> str:
    """The text of a file opened as UTF-8, without the byte order mark that some editors begin it with.

    Raises `click.ClickException` that names the file and the place.
    """
    try:
        return file.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file.name} is not UTF-8: {error}") from None


def drop() -> None:
    """Sends further output nowhere once nobody reads it, so that Python's own flush at exit does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
