"""Lines of the log, whose writers never wait, over pipes that nobody reads."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from subprocess import Popen

import pytest
from specexport.serve.log import LogLines, UnblockedHandler
from support.serving import PATIENCE, wait_for

CHILD = """
import logging, sys, warnings
from specexport.cli.serve import _log_to_stderr
_log_to_stderr()
for place in range(10_000):
    {write}
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        with suppress(OSError):
            os.close(fd)


def filled(writer: int) -> int:
    """How many bytes it took."""
    os.set_blocking(writer, False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            count += os.write(writer, b"." * 512)
    os.set_blocking(writer, True)
    return count


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("specexport.serve", logging.INFO, __file__, 0, message, (), None)


def messages(data: bytes) -> list[str]:
    return [json.loads(line)["message"] for line in data.decode().lstrip(".").splitlines()]


def test_what_finds_no_place_is_dropped_and_told_where_it_is_missing(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    count = filled(writer)
    log = UnblockedHandler(writer, most=100)
    log.emit(record("first"))
    wait_for(lambda: log._lines.empty())  # the thread waits with it
    for place in range(300):
        log.emit(record(f"{place}"))
    assert log.dropped == 200
    data = os.read(reader, count)
    while b'"99"' not in data:
        data += os.read(reader, 1 << 16)
    log.emit(record("last"))
    while b'"last"' not in data:
        data += os.read(reader, 1 << 16)
    first, *others = messages(data)
    assert (first, others[-1]) == ("first", "last")
    assert [one for one in others if "dropped" not in one] == [*map(str, range(100)), "last"]
    (notice,) = [one for one in others if "dropped" in one]
    assert notice.startswith("200 ")


def test_arguments_that_do_not_fit_are_told_in_the_log(pipe: tuple[int, int]) -> None:
    log = UnblockedHandler(pipe[1])
    log.emit(logging.LogRecord("specexport.serve", logging.INFO, "a.py", 7, "%d files", ("three",), None))
    log.emit(record("last"))
    log.wait(PATIENCE)
    told, last = messages(os.read(pipe[0], 1 << 16))
    assert "a.py:7" in told
    assert "TypeError" in told
    assert (last, log.dropped, log._taken) == ("last", 0, 2)


def test_a_reader_that_left_is_counted(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    log = UnblockedHandler(pipe[1])
    for _ in range(3):
        log.emit(record("line"))
    log.wait(PATIENCE)
    assert log.dropped == 3


@pytest.mark.parametrize(
    "write",
    [
        "logging.info('x' * 1000)",
        "warnings.warn(f'{place}' + 'x' * 1000)",
        "logging.getLogger('asyncio').error('x' * 1000, exc_info=ValueError('y'))",
    ],
    ids=["logging", "warnings", "a traceback"],
)
def test_a_process_goes_on_and_ends_although_nobody_reads(pipe: tuple[int, int], write: str) -> None:
    writer = pipe[1]
    filled(writer)
    with Popen([sys.executable, "-c", CHILD.format(write=write)], stdout=writer, stderr=writer) as process:
        try:
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_all_comes_out_at_exit_where_somebody_reads(pipe: tuple[int, int]) -> None:
    command = [sys.executable, "-c", CHILD.format(write="logging.info(place) if place < 1000 else None")]
    with Popen(command, stderr=pipe[1]) as process:
        os.close(pipe[1])
        data = b"".join(iter(lambda: os.read(pipe[0], 1 << 16), b""))
        assert process.wait(PATIENCE) == 0
    assert messages(data) == [str(place) for place in range(1000)]


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
