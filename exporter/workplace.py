"""A folder that appears whole or not at all: written beside its place under a temporary name, then renamed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..bundle import MANIFEST
from ..errors import OutputError


@contextmanager
def temporary_sibling(final: Path) -> Iterator[Path]:
    """A new folder beside `final`, removed unless it was renamed away; what killed processes left goes first."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for path in final.parent.glob(f".{_escaped(final.name)}.tmp-*"):
        match = re.fullmatch(r".*\.tmp-(\d+)(-old)?", path.name)
        if match and not _alive(int(match[1])):
            if match[2] and not final.exists():  # killed between the two renames of a replacement
                path.rename(final)
            discard(path)
    temporary = final.parent / f".{final.name}.tmp-{os.getpid()}"
    discard(temporary)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        discard(temporary)


@contextmanager
def new_folder(final: Path, force: bool) -> Iterator[Path]:
    """Like `temporary_sibling`, and put into place at the end. SIGTERM cleans up as an interrupt does.

    Raises `OutputError` when `final` exists without `force`, is not a bundle, or the disk is full.
    """
    try:
        _check_free(final, force)
        with _terminate_as_exit(), temporary_sibling(final) as temporary:
            yield temporary
            if force and final.exists():
                old = final.parent / f".{final.name}.tmp-{os.getpid()}-old"
                final.rename(old)
                temporary.rename(final)
                discard(old)
            else:
                temporary.rename(final)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise OutputError(f"{final} came into being during the build; nothing was kept") from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"the disk is full: {error.filename or final} could not be written; nothing was kept") from None
        raise OutputError(f"{error.filename or final}: {error.strerror or error}; nothing was kept") from None


def _check_free(final: Path, force: bool) -> None:
    for parent in final.parents:
        if parent.exists() and not parent.is_dir():
            raise OutputError(f"{parent} is a file, so {final} cannot be made; choose another --output")
    if final.exists() or final.is_symlink():
        if not force:
            raise OutputError(f"{final} exists; choose another --output, or replace it with --force")
        if not (final / MANIFEST).is_file():
            raise OutputError(f"{final} exists and is no bundle (it has no {MANIFEST}); --force replaces bundles only")


def require_space(folder: Path, needed: int) -> None:
    """Raises `OutputError` when the disk of `folder` has fewer than `needed` bytes free."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(f"the build needs {needed / 1e9:.1f} GB under {folder}, where {free / 1e9:.1f} GB are free")


def discard(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
