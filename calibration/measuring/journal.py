"""A journal of what a long run has finished, so that an interrupted run can be resumed.

A JSONL file: `{"journal": 1, "header": {...}}`, then a line `{"key": ..., "row": {...}}` for each finished part.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from ...atomic import lock, require_locks
from ...errors import OutputError

VERSION = 1
START = b'{"journal": '

Row = dict[str, Any]


class Journal:
    """Made by `Journal.open`. Holds a lock on the file until it is closed.

    finished: rows by key, in the order in which they were added. replaced: the file belonged to another run and was
    emptied.
    """

    def __init__(self, path: Path, file: FileIO, finished: dict[str, Row], replaced: bool) -> None:
        self.path, self.finished, self.replaced = path, finished, replaced
        self._file = file

    @classmethod
    def open(cls, path: Path, header: dict[str, Any], foreign: str | None = None) -> Journal:
        """Continue the file if it has the same header, else create it, with its folder. header: a JSON object.

        A journal with another header belongs to another run; it is replaced, or with `foreign` refused, with that text
        after its path. The last line of a killed run may be incomplete and is dropped. Raises `OutputError` for any
        other broken line, by number, and for a file that is not a journal, is in use by another run, or cannot be
        written.
        """
        first = json.loads(json.dumps({"journal": VERSION, "header": header}))
        try:
            file = _open_locked(path)
        except OSError as error:
            raise _unwritable(path, error) from None
        try:
            content = file.read()
            *lines, torn = content.split(b"\n")
            known = _header(path, lines, torn)
            if foreign is not None and known not in (None, first):
                raise OutputError(f"{path} {foreign}")
            finished = _rows(path, lines[1:]) if known == first else {}
            journal = cls(path, file, finished, known not in (None, first))
            file.truncate(file.seek(len(content) - len(torn) if known == first else 0))
            if known != first:
                journal._append(first)
        except OSError as error:
            file.close()
            raise _unwritable(path, error) from None
        except BaseException:
            file.close()
            raise
        return journal

    def add(self, key: str, row: Row) -> None:
        """Append `row`, JSON, and sync it to disk. Raises `OutputError`."""
        try:
            self._append({"key": key, "row": row})
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self.finished[key] = row

    def remove(self) -> None:
        """Delete and close the file at the end of the run."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        while line:  # a full disk may take only a part
            line = line[self._file.write(line) :]
        os.fsync(self._file.fileno())


def _open_locked(path: Path) -> FileIO:
    require_locks()
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        # Unbuffered: a buffer would retry a failed write on close and fail again.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OutputError(f"{path} is not a regular file, so a run cannot be kept in it; give another path")
            _lock(path, file)
            # Another run may have finished and deleted the file between our open and our lock.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(path: Path, file: FileIO) -> None:
    try:
        lock(file)
    except BlockingIOError:
        raise OutputError(
            f"{path} is in use by another run; wait for it to end, or give this run another file"
        ) from None
    except OSError:
        pass  # a file system without locks


def _header(path: Path, lines: list[bytes], torn: bytes) -> Any:
    """The parsed first line; None if the file is empty or its first line incomplete.

    Raises `OutputError` for a file that is not a journal.
    """
    if not lines and (torn.startswith(START) or START.startswith(torn)):
        return None
    line = lines[0] if lines else torn
    found = _object(line)
    if set(found) != {"journal", "header"}:
        raise OutputError(
            f"{path}, line 1: found {_show(line)}, expected a journal's header; give another path, or delete the file"
        )
    return found


def _rows(path: Path, lines: list[bytes]) -> dict[str, Row]:
    finished: dict[str, Row] = {}
    for number, line in enumerate(lines, start=2):
        entry = _object(line)
        if set(entry) != {"key", "row"} or not isinstance(entry["key"], str) or not isinstance(entry["row"], dict):
            expected = '{"key": "...", "row": {...}}'
            raise OutputError(
                f"{path}, line {number}: found {_show(line)}, expected {expected}; delete the file to start over"
            )
        if entry["key"] in finished:
            raise OutputError(
                f"{path}, line {number}: the key {entry['key']!r} appears twice; delete the file to start over"
            )
        finished[entry["key"]] = entry["row"]
    return finished


def _object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; an empty one for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # also: invalid UTF-8, numbers too long, nesting too deep
        return {}
    return found if isinstance(found, dict) else {}


def _show(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", "replace"))


def _unwritable(path: Path, error: OSError) -> OutputError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return OutputError(
        f"{path} cannot be written: {'the disk is full' if full else error.strerror}; free some space, or give "
        "another path"
    )
