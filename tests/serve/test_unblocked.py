"""Standard streams whose writers never wait, over pipes that nobody reads."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from subprocess import PIPE, Popen

import pytest
from specexport.serve.log import Unblocked, dropped, unblock_standard_streams
from support.serving import PATIENCE, wait_for

CHILD = """
import logging, os, sys, threading, warnings
from specexport.serve.log import dropped
from specexport.serve.log import unblock_standard_streams
unblock_standard_streams(dropped)
logging.basicConfig(level=logging.INFO)
for place in range(1000):
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


def read(reader: int, until: bytes) -> bytes:
    found = b""
    while until not in found:
        found += os.read(reader, 1 << 16)
    return found


def test_lines_come_out_whole_and_in_order(pipe: tuple[int, int]) -> None:
    stream = Unblocked(pipe[1])
    stream.write("a")
    stream.write("b\nc\nd")
    print("é", "\udcff", file=stream)
    print("end", file=stream, flush=True)
    assert stream.wait(PATIENCE)
    assert read(pipe[0], b"end\n") == "ab\nc\ndé \\udcff\nend\n".encode()
    assert stream.dropped == 0
    assert (stream.fileno(), stream.isatty()) == (pipe[1], False)


def test_what_finds_no_room_is_dropped_and_told_where_it_is_missing(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    count = filled(writer)
    stream = Unblocked(writer, dropped, room=1000)
    stream.write("first\n")
    wait_for(lambda: not stream._lines)  # the thread waits with it
    for place in range(300):
        stream.write(f"{place:09}\n")
    assert stream.dropped == 200
    assert not stream.wait(0.01)
    found = os.read(reader, count)
    assert stream.wait(PATIENCE)
    stream.write("last\n")
    first, *lines, notice, last = (found + read(reader, b"last\n")).decode().strip(".").splitlines()
    assert (first, lines, last) == ("first", [f"{place:09}" for place in range(100)], "last")
    told = json.loads(notice)
    assert (told["level"], told["message"].split()[0]) == ("warning", "200")


def test_a_reader_that_left_is_counted(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = Unblocked(pipe[1], dropped)
    for _ in range(3):
        stream.write("line\n")
        assert stream.wait(PATIENCE)
    assert stream.dropped == 3


def test_a_line_without_an_end_has_a_bound(pipe: tuple[int, int]) -> None:
    stream = Unblocked(pipe[1], room=1000)
    for _ in range(100):
        stream.write("x" * 100)
    assert stream.dropped > 5
    assert len(stream._begun) <= 1000


def test_a_write_from_within_a_write(pipe: tuple[int, int]) -> None:
    """As from a destructor that the collector runs while the lock is held."""
    stream = Unblocked(pipe[1])
    done = threading.Event()

    def write() -> None:
        with stream._changed:
            stream.write("nested\n")
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(PATIENCE)
    assert read(pipe[0], b"nested\n")


def test_streams_that_somebody_replaced_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, object())
    own = sys.stdout, sys.stderr
    unblock_standard_streams(dropped)
    assert (sys.stdout, sys.stderr) == own


@pytest.mark.parametrize(
    "write",
    [
        "logging.info('x' * 1000)",
        "warnings.warn(f'{place}' + 'x' * 1000)",
        "print('x' * 1000); print('x' * 1000, file=sys.stderr)",
        "sys.excepthook(ValueError, ValueError('x' * 1000), None)",
        "logging.getLogger('asyncio').error('x' * 1000, exc_info=ValueError('y'))",
    ],
    ids=["logging", "warnings", "print", "a traceback", "asyncio"],
)
def test_a_process_goes_on_and_ends_although_nobody_reads(pipe: tuple[int, int], write: str) -> None:
    writer = pipe[1]
    filled(writer)
    with Popen([sys.executable, "-c", CHILD.format(write=write)], stdout=writer, stderr=writer) as process:
        assert process.wait(PATIENCE) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors are opened anew through /proc")
def test_nor_do_libraries_wait_that_write_to_the_descriptor(pipe: tuple[int, int]) -> None:
    writer = pipe[1]
    filled(writer)
    write = "import ctypes; [ctypes.CDLL(None).write(fd, b'x' * 1000, 1000) for fd in (1, 2)]"
    with Popen([sys.executable, "-c", CHILD.format(write=write)], stdout=writer, stderr=writer) as process:
        assert process.wait(PATIENCE) == 0
    assert os.get_blocking(writer)  # those that share it are left as they were


def test_all_comes_out_at_exit_where_somebody_reads(pipe: tuple[int, int]) -> None:
    write = "print(place); logging.info(place)"
    with Popen([sys.executable, "-c", CHILD.format(write=write)], stdout=PIPE, stderr=PIPE, text=True) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == [str(place) for place in range(1000)]
    assert len(err.splitlines()) == 1000
