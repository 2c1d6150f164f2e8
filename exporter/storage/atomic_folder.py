"""A folder that appears whole or not at all: written next to its place under a temporary name, then renamed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ...bundle import MANIFEST
from ...errors import OutputError
from ...locks import lock, require_locks

# In the temporary folder: what becomes the output, and what it replaces while the two are swapped.
NEW = "new"
OLD = "old"
SCRATCH = "scratch"
# Next to an output: the folder that holds them, and what it is called until it is locked.
TEMPORARY = re.compile(r"\.(.+)\.(tmp|new)-[a-z0-9_]{8}")


@contextmanager
def temporary_sibling(final: Path) -> Iterator[Path]:
    """A new folder to be renamed to `final`, inside a locked one next to it that is removed at the end.

    What killed processes left of this name goes first: a folder whose lock is free. A lock holds across containers,
    where the ids of processes mean nothing, and ends with its process. Where folders cannot be locked (NFS), what was
    left stays. Raises `OutputError` on a system without locks.
    """
    require_locks()
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_left(final.parent, re.compile(re.escape(final.name)))
    with _locked_folder(final) as outer:
        try:
            (outer / NEW).mkdir()
            yield outer / NEW
        finally:
            _clear(outer, final)


def remove_left(folder: Path, names: re.Pattern[str]) -> None:
    """Remove from a folder what killed processes left there of what was to be called by one of `names`."""
    for path in folder.iterdir():
        found = TEMPORARY.fullmatch(path.name)
        if found is None or not names.fullmatch(found[1]) or not path.is_dir() or path.is_symlink():
            continue
        if found[2] == "new":  # empty, and nobody's for more than a moment
            with suppress(OSError):
                path.rmdir()
            continue
        with _locked(path) as held:
            if held:
                _clear(path, folder / found[1])


@contextmanager
def _locked_folder(final: Path) -> Iterator[Path]:
    """A new one next to `final`. It gets the name by which others know it only once it is locked."""
    while True:
        try:
            made = Path(tempfile.mkdtemp(prefix=f".{final.name}.new-", dir=final.parent))
        except OSError as error:
            error.filename = str(final.parent)  # rather than a name that nobody gave
            raise
        with _locked(made):
            try:
                outer = made.rename(final.parent / f".{final.name}.tmp-{made.name[-8:]}")
            except FileNotFoundError:
                continue  # another process took it for one that was left
            yield outer
            return


@contextmanager
def new_folder(final: Path, force: bool | None) -> Iterator[Path]:
    """Like `temporary_sibling`, and put into place at the end. SIGTERM cleans up as an interrupt does.

    force: replace a bundle that is there; None where the command has no such option.

    Raises `OutputError` when `final` exists without `force`, is not a bundle, or a file cannot be written.
    """
    try:
        check_free(final, force)
        with _terminate_as_exit(), temporary_sibling(final) as temporary:
            yield temporary
            _put_into_place(temporary, final, force)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or str(error).partition("\n")[0]
        place = error.filename2 or error.filename  # of a rename, where it led
        code = "disk_full" if full else None
        raise OutputError(
            f"{place}: {reason}; nothing was kept" if place else f"{reason}; nothing was kept", code=code
        ) from None


@contextmanager
def scratch_beside(workplace: Path) -> Iterator[Path]:
    """A folder on the same disk as what `new_folder` gave, which goes with it if the process is killed."""
    scratch = workplace.parent / SCRATCH
    scratch.mkdir()
    try:
        yield scratch
    finally:
        discard(scratch)


def _put_into_place(temporary: Path, final: Path, force: bool | None) -> None:
    if os.path.lexists(final):
        if not force:
            raise OutputError(f"{final} was created in the meantime; nothing was kept", code="output_exists")
        check_free(final, force)  # what lies there now need not be what lay there at the start
        final.rename(temporary.parent / OLD)
    temporary.rename(final)


def _clear(outer: Path, final: Path) -> None:
    """Remove a temporary folder; a bundle that it put aside comes back unless the new one took its place."""
    if os.path.lexists(outer / OLD) and not os.path.lexists(final):
        (outer / OLD).rename(final)
    discard(outer)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock; says whether it could be had."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        lock(descriptor)
    except OSError:
        return False
    return True


def check_free(final: Path, force: bool | None) -> None:
    """Raises `OutputError` where nothing can be put at `final`. force: as of `new_folder`."""
    for parent in final.parents:
        if parent.exists() and not parent.is_dir():
            raise OutputError(f"{parent} is a file, so {final} cannot be made; choose another --output")
    if final.exists() or final.is_symlink():
        if not force:
            instead = "" if force is None else ", or replace it with --force"
            raise OutputError(f"{final} exists; choose another --output{instead}", code="output_exists")
        if not (final / MANIFEST).is_file():
            raise OutputError(
                f"{final} exists and is not a bundle (it has no {MANIFEST}); --force replaces bundles only",
                code="output_exists",
            )


def discard(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


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
