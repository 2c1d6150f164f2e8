"""The log of `specexport serve`, one line of JSON for each record, and streams that nobody has to read.

Writers never wait: lines that find no room are dropped and counted.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from select import select
from threading import Condition, Thread
from typing import TextIO

ROOM = 1 << 20  # bytes that may wait to be written
LAST_WRITES = 1.0  # seconds for what is left at exit


class Unblocked(io.TextIOBase):
    """A text stream to the file descriptor `fd`. A thread writes, so a full pipe or a stalled disk stops only that.

    told: makes the line that says how many lines were dropped, once writing goes on.
    """

    def __init__(self, fd: int, told: Callable[[int], str] | None = None, room: int = ROOM) -> None:
        self._fd, self._told, self._room = fd, told, room
        self._target = os.dup(fd)
        self._lines: deque[bytes | int] = deque()  # an int: so many were dropped at this place
        self._size = 0  # bytes in it
        self._begun = ""  # a line without its end
        self._writing = False
        self._changed = Condition()  # its lock is reentrant: a destructor may write while its thread holds it
        self._thread: Thread | None = None
        self.dropped = 0  # lines

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._target)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._changed:
            *whole, self._begun = (self._begun + text).split("\n")
            for line in whole:
                self._put((line + "\n").encode(errors="backslashreplace"))
            if len(self._begun) > self._room:
                self._begun = ""
                self._drop()
            if whole and self._thread is None:
                self._thread = Thread(target=self._run, name="specexport-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def wait(self, timeout: float = LAST_WRITES) -> bool:
        """Whether all was written, after `timeout` seconds at the latest. Blocks."""
        with self._changed:
            if self._begun:
                self.write("\n")
            return self._changed.wait_for(lambda: not self._lines and not self._writing, timeout)

    def _put(self, line: bytes) -> None:
        if self._size + len(line) > self._room:
            self._drop()
        else:
            self._lines.append(line)
            self._size += len(line)

    def _drop(self) -> None:
        self.dropped += 1
        if self._lines and isinstance(self._lines[-1], int):
            self._lines[-1] += 1
        else:
            self._lines.append(1)

    def _run(self) -> None:
        missing = 0  # lines since the last that was written
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._lines))
                item = self._lines.popleft()
                self._writing = True
                if isinstance(item, bytes):
                    self._size -= len(item)
            if isinstance(item, int):
                missing, item = missing + item, b""
            told = self._told(missing).encode() if missing and self._told is not None else b""
            try:
                _write_all(self._target, told + item)
                missing = 0
            except OSError:  # a reader that left, a full disk
                missing += bool(item)
                with self._changed:
                    self.dropped += bool(item)


def unblock_standard_streams(told: Callable[[int], str]) -> None:
    """For a process that must go on and end whoever reads its output. What is left at exit has `LAST_WRITES` seconds.

    told: see `Unblocked`, for stderr. Streams that something else has replaced stay as they are.
    """
    for name, line in (("stdout", None), ("stderr", told)):
        own: TextIO | None = getattr(sys, name)
        if own is None or own is not getattr(sys, f"__{name}__"):
            continue
        with suppress(OSError):  # it was closed
            own.flush()
            stream = Unblocked(own.fileno(), line)
            _unblock_descriptor(own.fileno())
            setattr(sys, name, stream)
            atexit.register(stream.wait)


def _unblock_descriptor(fd: int) -> None:
    """For libraries that write to it themselves: they lose what a full pipe or a stopped terminal does not take.

    It is opened anew, since others share its flags. Linux only; a socket cannot be opened, and stays.
    """
    if not (stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd)):
        return
    with suppress(OSError):
        new = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.dup2(new, fd)
        os.close(new)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # whoever shares it made it so
            select([], [fd], [])


class LogLines(logging.Formatter):
    """`time` (ISO 8601, UTC with its offset), `level`, `logger`, then `message`, or what the access log's line says."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        row = json.loads(message) if record.name == "specexport.access" else {"message": message}
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**head, **row})


def dropped(count: int) -> str:
    """The line that stands for `count` others."""
    told = f"{count} lines of the log were dropped: nobody took them"
    record = logging.LogRecord("specexport.serve", logging.WARNING, __file__, 0, told, (), None)
    return LogLines().format(record) + "\n"
