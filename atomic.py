"""Files and folders that appear whole or not at all, and locks that end with their process.

What is written lies next to its final path under a temporary name, and is renamed at the end. It is locked while its
process lives, so the next write can tell what a killed process left: that whose lock is free. The locks are flock(2)'s,
on Linux and macOS; they hold across containers, where the ids of processes mean nothing. On file systems without them
(some NFS), what was left stays.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from types import ModuleType

from .errors import OutputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None

TEMPORARY = re.compile(r"\.(.+)\.tmp-[0-9a-f]{8}")
# In a temporary folder: what becomes the output, and what it replaces while the two are swapped.
NEW, OLD = "new", "old"
# Errors of a disk without space, and what numpy says of one, without a number.
FULL = (errno.ENOSPC, errno.EDQUOT)
CUT_SHORT = re.compile(r"\d+ requested and \d+ written")


def require_locks() -> None:
    """Raises `OutputError` on a system without such locks, e.g. Windows."""
    if fcntl is None:
        raise OutputError(
            f"the system {sys.platform} has no locks that end with their process; "
            "build, compile, calibrate and bench on Linux or macOS, which may be WSL"
        )


def lock(file: int | FileIO) -> None:
    """Lock an open file or folder exclusively, without waiting; closing it releases the lock.

    Raises `BlockingIOError` if it is already locked, another OSError if the file system has no locks, and
    `OutputError` if the system has none.
    """
    require_locks()
    assert fcntl is not None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder that is there. Raises what `lock` raises."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """The same where the file system has locks. Raises `BlockingIOError` if another process holds it, and OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not _locks(descriptor):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace the file atomically; its content is synced to disk before the rename, and its folder after it.

    Raises OSError; the file is then unchanged.
    """
    with temporary_file(path, content) as made:
        made.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Write a file's content, or the names in a folder, to disk: what was renamed there then survives a power cut.

    Raises OSError for a file; for a folder nothing, since some file systems cannot.
    """
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def temporary_file(path: Path, content: bytes | memoryview) -> Iterator[Path]:
    """A locked temporary file with `content` next to `path`, to be renamed by the caller; else removed at the end.

    What killed processes left for the same `path` is removed first. Raises OSError.
    """
    with _temporary(path, folder=False) as (made, descriptor):
        rest = memoryview(content).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        yield made


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """A new folder to be renamed to `final`, inside a locked one next to it that is removed at the end.

    What killed processes left of this name is removed first. Raises OSError, and `OutputError` on a system without
    locks.
    """
    require_locks()
    final.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(final, folder=True) as (outer, _):
        (outer / NEW).mkdir()
        yield outer / NEW


def swap(temporary: Path, final: Path) -> None:
    """Put a temporary folder, its files synced to disk, into the place of what is there. A swap that is cut short is
    undone.
    """
    for path in (*temporary.rglob("*"), temporary):
        sync(path)
    if os.path.lexists(final):
        final.rename(temporary.parent / OLD)
    temporary.rename(final)
    sync(final.parent)


def remove_left(folder: Path, names: re.Pattern[str] | None = None) -> None:
    """Remove what killed processes left in `folder` of what was to be called by one of `names`.

    None is for folders that only specexport writes to.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            found = TEMPORARY.fullmatch(path.name)
            if found and (names is None or names.fullmatch(found[1])) and not path.is_symlink():
                with suppress(OSError, OutputError), locked(path):
                    _clear(path, folder / found[1])


def discard(path: Path) -> None:
    """Remove a file, a link or a folder, as far as that is possible. Raises OSError for a file that stays."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def output_errors(outcome: str, place: Path | None = None) -> Iterator[None]:
    """Turns an OSError into an `OutputError` of one line. outcome: what became of the output. place: where the error
    names none.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in FULL or CUT_SHORT.fullmatch(str(error)) is not None
        reason = "the disk is full" if full else error.strerror or str(error).partition("\n")[0]
        where = error.filename2 or error.filename or place  # of a rename, where it led
        message = f"{where}: {reason}; {outcome}" if where else f"{reason}; {outcome}"
        raise OutputError(message, code="disk_full" if full else None) from None


@contextmanager
def _temporary(final: Path, folder: bool) -> Iterator[tuple[Path, int]]:
    remove_left(final.parent, re.compile(re.escape(final.name)))
    made, descriptor = _made(final, folder)
    try:
        yield made, descriptor
    finally:
        with suppress(OSError):
            _clear(made, final)
        os.close(descriptor)


def _made(final: Path, folder: bool) -> tuple[Path, int]:
    """A new file or folder, locked if that is possible; again if another process takes it for one that was left."""
    while True:
        made, is_made = final.with_name(f".{final.name}.tmp-{secrets.token_hex(4)}"), False
        try:
            if folder:
                made.mkdir()
                is_made = True
                descriptor = os.open(made, os.O_RDONLY)
            else:
                descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            if is_made and isinstance(error, FileNotFoundError):
                continue
            error.filename = str(final.parent)  # rather than a name that nobody gave
            raise
        if _locks(descriptor) and made.exists():
            return made, descriptor
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    """Whether it could be locked, or nothing can be."""
    try:
        lock(descriptor)
    except BlockingIOError:
        return False
    except (OSError, OutputError):
        pass
    return True


def _clear(made: Path, final: Path) -> None:
    """Remove what is temporary; what a folder put aside comes back unless the new one took its place."""
    if os.path.lexists(made / OLD) and not os.path.lexists(final):
        (made / OLD).rename(final)
    if os.path.lexists(made):
        discard(made)
