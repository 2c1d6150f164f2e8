"""Lines of the server's log."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timedelta

from specexport.serve.log import LogLines


def line(name: str, message: str, exc_info: object = None) -> dict[str, object]:
    record = logging.LogRecord(name, logging.INFO, __file__, 1, message, (), exc_info)
    record.created = 1_795_495_249.623
    return json.loads(LogLines().format(record))


def test_times_are_iso_8601_with_their_offset() -> None:
    told = line("specexport.serve", "hello")
    assert told == {
        "time": "2026-11-24T04:40:49.623+00:00",
        "level": "info",
        "logger": "specexport.serve",
        "message": "hello",
    }
    assert datetime.fromisoformat(str(told["time"])).utcoffset() == timedelta(0)


def test_a_line_of_the_access_log_has_its_own_keys() -> None:
    assert line("specexport.access", '{"path": "/health"}')["path"] == "/health"


def test_a_traceback_stays_in_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        told = line("specexport.serve", "failed", sys.exc_info())
    assert "ValueError: broken" in str(told["traceback"])
