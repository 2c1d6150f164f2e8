"""The command group, and how it reports errors."""

from __future__ import annotations

import warnings
from typing import Any

import click

from ..errors import SpecExportError
from ..version import VERSION
from .export_packages import EXPORTER_EXTRA
from .streams import drop


class Commands(click.Group):
    """Ends a user's mistake in one line on stderr and exit code 1, without a traceback."""

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
        except BrokenPipeError:
            drop()
            raise SystemExit(1) from None
        except OSError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="specexport")
def main() -> None:
    """Compiled speculative decoding at batch 1."""
