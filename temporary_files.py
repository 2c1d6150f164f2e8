"""Files that appear whole or not at all: written next to their final path under a temporary name, then renamed.

A temporary file is locked while its process lives, so the next write can tell which ones a killed process left.
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
    """Replace the file atomically; its content is synced to disk before the rename.

    Raises OSError; the file is then unchanged.
    """
    with temporary_file(path, content) as made:
        made.replace(path)


@contextmanager
def temporary_file(path: Path, content: bytes | memoryview) -> Iterator[Path]:
    """A locked temporary file with `content` next to `path`, to be renamed by the caller; else removed at the end.

    Temporary files that killed processes left for the same `path` are removed first. Raises OSError.
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
    """Remove temporary files whose process has ended: those for the file `name`, or all of them if it is None.

    None is for folders that only specexport writes to. If the system or the file system has no locks, nothing is
    removed.
    """
    with suppress(OSError, OutputError):
        for path in folder.iterdir():
            found = TEMPORARY.fullmatch(path.name)
            if found is not None and name in (None, found[1]) and path.is_file() and not path.is_symlink():
                with suppress(OSError), path.open("rb", buffering=0) as file:
                    lock(file)
                    path.unlink()


def _made(path: Path) -> tuple[Path, FileIO]:
    """Create an empty, locked temporary file for `path`; again if another process removes it before it is locked."""
    while True:
        made = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
        file = FileIO(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "r+b")
        with suppress(BlockingIOError):
            with _missing_locks_ignored():
                lock(file)
            if made.exists():
                return made, file
        file.close()


@contextmanager
def _missing_locks_ignored() -> Iterator[None]:
    """Ignore that the system or file system has no locks, but not that a file is locked."""
    try:
        yield
    except BlockingIOError:
        raise
    except (OSError, OutputError):
        pass
