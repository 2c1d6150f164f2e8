"""Files that appear whole or not at all: written beside their place under a temporary name, then renamed.

A temporary file is locked while its process lives, so the next write knows which ones a killed process has left.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from .errors import OutputError
from .locks import lock

TEMPORARY = re.compile(r"\.(.+)\.tmp-[0-9a-f]{8}")


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace the file, on the disk before it has its name. Raises OSError; then the file is what it was."""
    with temporary_file(path, content) as made:
        made.replace(path)


@contextmanager
def temporary_file(path: Path, content: bytes | memoryview) -> Iterator[Path]:
    """A file of this content beside `path`, to be renamed. What is left of it at the end goes.

    What killed processes left of others for the same `path` goes first. Raises OSError.
    """
    remove_left(path.parent, path.name)
    made, file = _made(path)
    try:
        with file:
            rest = memoryview(content).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
            yield made
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)


def remove_left(folder: Path, name: str | None = None) -> None:
    """Remove temporary files whose process has ended; those for files of another name only where `name` is None, which
    is for folders of ours. Where the system or the file system has no locks, all stay.
    """
    with suppress(OSError, OutputError):
        for path in folder.iterdir():
            found = TEMPORARY.fullmatch(path.name)
            if found is not None and name in (None, found[1]) and path.is_file() and not path.is_symlink():
                with suppress(OSError), path.open("rb", buffering=0) as file:
                    lock(file)
                    path.unlink()


def _made(path: Path) -> tuple[Path, FileIO]:
    """An empty file that is locked and has its name: until it was locked, another process may have removed it."""
    while True:
        made = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
        file = FileIO(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "r+b")
        with suppress(BlockingIOError):
            with _unless_there_are_none():
                lock(file)
            if made.exists():
                return made, file
        file.close()


@contextmanager
def _unless_there_are_none() -> Iterator[None]:
    """Locks, in this system or this file system."""
    try:
        yield
    except BlockingIOError:
        raise
    except (OSError, OutputError):
        pass
