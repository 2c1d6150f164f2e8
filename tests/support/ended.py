"""The error that ended a command: click shows its message and keeps no more of it."""

from __future__ import annotations

from typing import Any

import click
from click.testing import Result
from specexport.cli.group import Commands
from specexport.errors import SpecExportError

SHOWN: list[BaseException | None] = [None]
INVOKE = Commands.invoke


def invoke(self: Commands, ctx: click.Context) -> Any:
    SHOWN[0] = None
    try:
        return INVOKE(self, ctx)
    except click.ClickException as error:
        SHOWN[0] = error.__context__
        raise


Commands.invoke = invoke  # type: ignore[method-assign]


def cause(result: Result, code: int | None = None) -> SpecExportError:
    """The error of the last command, which ended with its one line. code: by default 1 or 2."""
    assert result.exit_code in ((1, 2) if code is None else (code,)), (result.exception, result.stderr)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    error = SHOWN[0]
    assert isinstance(error, SpecExportError), (error, result.stderr)
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.stderr.count("Error: ") == 1
    return error
