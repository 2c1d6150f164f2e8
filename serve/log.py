"""The log of `specexport serve`: one line of JSON for each record, written by a thread of its own.

So no request waits for whoever reads stderr: lines that find no place are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime, timezone
from queue import SimpleQueue
from select import select
from threading import Thread
from time import monotonic, sleep

MOST_LINES = 4096  # that wait to be written


class LogLines(logging.Formatter):
    """`time` (ISO 8601, UTC with its offset), `level`, `logger`, then `message`, or what the access log's line says."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        row = json.loads(message) if record.name == "specexport.access" else {"message": message}
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**head, **row})


class UnblockedHandler(logging.Handler):
    """Writes to a file descriptor, directly: a thread that blocks within `sys.stderr` would hold its lock at exit."""

    def __init__(self, fd: int, most: int = MOST_LINES) -> None:
        super().__init__()
        self.setFormatter(LogLines())
        self.dropped = 0  # lines
        self._fd, self._most = fd, most
        self._lines: SimpleQueue[str] = SimpleQueue()  # reentrant: a destructor may log while its thread is within
        self._taken = self._written = 0
        Thread(target=self._write, name="specexport-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= self._most:
            self.dropped += 1
            return
        try:
            line = self.format(record)
        except Exception as error:  # `handleError` would write to stderr, for whose reader nobody waits
            where, reason = f"{record.pathname}:{record.lineno}", f"{type(error).__name__}: {error}"
            line = self.format(_warning(f"a line of the log from {where} cannot be written: {reason}"))
        self._taken += 1
        self._lines.put(line)

    def wait(self, timeout: float) -> None:
        """Return once all is written, after `timeout` seconds at the latest. Registered at exit."""
        end = monotonic() + timeout
        while self._written < self._taken and monotonic() < end:
            sleep(0.005)

    def _write(self) -> None:
        noted = 0  # of the dropped lines
        while True:
            lines = [self._lines.get()]
            if self.dropped > noted:
                count = self.dropped - noted
                lines.append(self.format(_warning(f"{count} lines of the log were dropped: nobody took them")))
                noted = self.dropped
            try:
                _write_all(self._fd, "".join(f"{line}\n" for line in lines).encode())
            except OSError:  # a reader that left, a full disk
                self.dropped, noted = self.dropped + 1, noted + 1
            self._written += 1


def _warning(message: str) -> logging.LogRecord:
    return logging.LogRecord("specexport.serve", logging.WARNING, __file__, 0, message, (), None)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # whoever shares it made it so
            select([], [fd], [])
