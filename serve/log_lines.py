"""The log of `specexport serve`: one line of JSON for each record."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


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
