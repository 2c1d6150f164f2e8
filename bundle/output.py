"""Where a command puts what it makes: a folder that appears when it is whole, and replaces nothing but a bundle."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from ..atomic import FULL, output_errors, swap, temporary_file, temporary_folder
from ..errors import OutputError
from .manifest import MANIFEST


@contextmanager
def new_folder(final: Path, force: bool | None) -> Iterator[Path]:
    """Like `temporary_folder`, and put into place at the end. SIGTERM cleans up as an interrupt does.

    force: replace a bundle that is there; None where the command has no such option.

    Raises `OutputError` when `final` exists without `force`, is not a bundle, or a file cannot be written.
    """
    with output_errors("nothing was kept"):
        check_free(final, force)
        with _terminate_as_exit(), ExitStack() as stack:
            with _usable(final):
                temporary = stack.enter_context(temporary_folder(final))
            yield temporary
            if os.path.lexists(final):
                if not force:
                    raise OutputError(f"{final} was created in the meantime; nothing was kept", code="output_exists")
                check_free(final, force)  # what lies there now need not be what lay there at the start
            swap(temporary, final)


def check_free(final: Path, force: bool | None) -> None:
    """Raises `OutputError` where nothing can be put at `final`. force: as of `new_folder`."""
    if final.name in ("", ".."):
        raise OutputError(f"{final} cannot be replaced; give the new folder a name in --output", "output")
    if os.path.ismount(final):  # a container's volume: only what is in it can be renamed
        raise OutputError(f"{final} is a mount point, which cannot be replaced; give a folder in it", "output")
    with _usable(final):
        for parent in final.parents:
            if parent.exists() and not parent.is_dir():
                raise OutputError(f"{parent} is a file, so {final} cannot be made; choose another --output", "output")
        if final.exists() or final.is_symlink():
            is_bundle = (final / MANIFEST).is_file()
            if not force:
                instead = ", or replace it with --force" if force is False and is_bundle else ""
                raise OutputError(f"{final} exists; choose another --output{instead}", code="output_exists")
            if not is_bundle:
                raise OutputError(
                    f"{final} exists and is not a bundle (it has no {MANIFEST}); --force replaces bundles only",
                    code="output_exists",
                )
        there = next(parent for parent in final.parents if parent.exists())
        with temporary_file(there / final.name, b""):  # whether anything can be written there
            pass


@contextmanager
def _usable(final: Path) -> Iterator[None]:
    """Errors of the place, but of a full disk, are the option's."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        reason = error.strerror or error
        raise OutputError(f"{final} cannot be made: {reason}; choose another --output", "output") from None


@contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` runs; signals can only be set in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
