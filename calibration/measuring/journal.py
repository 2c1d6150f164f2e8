"""A journal of what a long run has finished, so that an interrupted run can be resumed.

A JSONL file: `{"journal": 1, "header": {...}}`, then a line `{"key": ..., "row": {...}}` for each finished part.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from ...atomic import FULL, lock, require_locks
from ...errors import BundleError, OutputError
from ...strict import parse
from .prompts import Progress

VERSION = 1
START = b'{"journal": '

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """Of a long run. key: its row in the journal. work: about how many rounds take as long, as far as is known now."""

    key: str
    work: Callable[[], float]
    do: Callable[[], None]


def own_path(folder: Path, command: str, header: dict[str, Any]) -> Path:
    """A file for each header, so that runs with other options leave an interrupted run's journal alone."""
    return folder / f"{command}-{hashlib.sha256(json.dumps(header).encode()).hexdigest()[:8]}.jsonl"


class Journal:
    """Made by `Journal.open`. Holds a lock on the file until it is closed.

    finished: rows by key, in the order in which they were added. replaced: the file belonged to another run and was
    emptied.
    """

    def __init__(self, path: Path, file: FileIO, header: Row, foreign: str | None) -> None:
        self.path, self._file, content = path, file, file.read()
        *lines, torn = content.split(b"\n")
        known = _header(path, lines, torn)
        self.replaced = known not in (None, header)
        if self.replaced and foreign is not None:
            raise OutputError(f"{path} {foreign}", "journal")
        self.finished = _rows(path, lines[1:]) if known == header else {}
        file.truncate(file.seek(len(content) - len(torn) if known == header else 0))
        if known != header:
            self._append(header)

    @classmethod
    def open(cls, path: Path, header: dict[str, Any], foreign: str | None = None) -> Journal:
        """Continue the file if it has the same header, else create it, with its folder. header: a JSON object.

        A journal with another header belongs to another run; it is replaced, or with `foreign` refused, with that text
        after its path. The last line of a killed run may be incomplete and is dropped. Raises `OutputError` for any
        other broken line, by number, and for a file that is not a journal, is in use by another run, or cannot be
        written.
        """
        with _output_errors(path):
            with _output_errors(path, "journal"):
                file = _open_locked(path)
            try:
                return cls(path, file, json.loads(json.dumps({"journal": VERSION, "header": header})), foreign)
            except BaseException:
                file.close()
                raise

    def add(self, key: str, row: Row) -> None:
        """Append `row`, JSON, and sync it to disk. Raises `OutputError`."""
        with _output_errors(self.path):
            self._append({"key": key, "row": row})
        self.finished[key] = json.loads(json.dumps(row))  # as a resumed run reads it

    def read(self, key: str, kind: type[T]) -> T:
        """The row as the dataclass `kind`. Raises `OutputError` for one that is none."""
        try:
            return parse(kind, self.finished[key], f"{self.path}, row {key}")
        except BundleError as error:
            raise OutputError(f"{error}; delete the file to start over") from None

    def once(self, key: str, kind: type[T], make: Callable[[], T]) -> T:
        """The row as the dataclass `kind`, made and added if the journal lacks it. Raises `OutputError`."""
        if key not in self.finished:
            self.add(key, asdict(cast(Any, make())))
        return self.read(key, kind)

    def take(self, steps: Sequence[Step], progress: Progress) -> None:
        """Do the steps, also those that a run before finished, as they read their rows.

        progress: gets the work done and all of it, before each step behind the last finished one, and at the end. So
        what is resumed counts as done at the start, and tells nothing about the speed.
        """
        done, last = 0.0, max((number for number, step in enumerate(steps) if step.key in self.finished), default=-1)
        for number, step in enumerate(steps):
            work = step.work()
            if number > last and work:
                progress(round(done), round(done + sum(one.work() for one in steps[number:])))
            step.do()
            done += work
        progress(round(done), round(done))

    def remove(self) -> None:
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


@contextmanager
def _output_errors(path: Path, field: str | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "free some space" if error.errno in FULL else "make it writable, or give another path"
        raise OutputError(f"{path} cannot be written: {error.strerror}; {remedy}", field) from None


def _open_locked(path: Path) -> FileIO:
    require_locks()
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        # Unbuffered: a buffer would retry a failed write on close and fail again.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OutputError(
                    f"{path} is not a regular file, so a run cannot be kept in it; give another path", "journal"
                )
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
        raise OutputError(f"{path} is in use by another run; wait for it to end, or stop it", code="in_use") from None
    except OSError:
        pass  # a file system without locks


def _header(path: Path, lines: list[bytes], torn: bytes) -> Any:
    """The parsed first line; None if the file is empty or its first line incomplete.

    Raises `OutputError` for a file that is not a journal.
    """
    if not lines and (torn.startswith(START) or START.startswith(torn)):
        return None
    line = lines[0] if lines else torn
    header = _object(line)
    if set(header) != {"journal", "header"}:
        raise _broken(path, 1, line, "a journal's header; give another path, or delete the file", "journal")
    return header


def _rows(path: Path, lines: list[bytes]) -> dict[str, Row]:
    finished: dict[str, Row] = {}
    for number, line in enumerate(lines, start=2):
        entry = _object(line)
        key, row = entry.get("key"), entry.get("row")
        if len(entry) != 2 or not isinstance(key, str) or not isinstance(row, dict) or key in finished:
            wanted = """{"key": "...", "row": {...}} with a new key; delete the file to start over"""
            raise _broken(path, number, line, wanted)
        finished[key] = row
    return finished


def _object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; an empty one for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # also: invalid UTF-8, numbers too long, nesting too deep
        return {}
    return value if isinstance(value, dict) else {}


def _broken(path: Path, number: int, line: bytes, expected: str, field: str | None = None) -> OutputError:
    shown = repr(line[:60].decode("utf-8", "replace"))
    return OutputError(f"{path}, line {number}: found {shown}, expected {expected}", field)
