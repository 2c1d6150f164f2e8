"""The command where something is missing: a reader of its log, descriptors."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pytest
from specexport.serve.log import MOST_LINES
from support.serving import PATIENCE, STARTED, wait_for


def asked(path: Path, line: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        connection.sendall(f"GET {line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(10_000), b""))


def flood(path: Path, count: int) -> None:
    """So many requests that are refused, over one connection."""
    line = b"GET /v1/models/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        for _ in range(0, count, 50):
            connection.sendall(line * 50)
            found = b""
            while found.count(b"HTTP/1.1 404") < 50:
                found += connection.recv(100_000)


@contextmanager
def started(bundle: Path, path: Path, before: str = "", **streams: int) -> Iterator[Popen[str]]:
    """before: shell commands of the process."""
    command = [sys.executable, "-m", "specexport", "serve", str(bundle), "--uds", str(path), "--threads", "1"]
    with Popen(["bash", "-c", f'{before}\nexec "$@"', "bash", *command], text=True, **streams) as process:
        STARTED.append(process)
        try:
            wait_for(lambda: path.is_socket() or process.poll() is not None)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("streams", [("stderr",), ("stdout", "stderr")], ids=str)
def test_pipes_that_nobody_reads(served_bundle: Path, tmp_path: Path, streams: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 512)
    os.set_blocking(writer, True)
    path = tmp_path / "socket"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with started(served_bundle, path, **{"stdout": nowhere} | dict.fromkeys(streams, writer)) as process:
        wait_for(lambda: answers(path))
        flood(path, MOST_LINES + 100)
        assert asked(path, "/health").startswith(b"HTTP/1.1 200")
        (line,) = [line for line in asked(path, "/metrics").splitlines() if b"log_lines_dropped_total{" in line]
        assert float(line.split()[-1]) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    for fd in (reader, writer, nowhere):
        os.close(fd)


def answers(path: Path) -> bool:
    with suppress(OSError):
        return asked(path, "/health").startswith(b"HTTP/1.1 200")
    return False


def test_a_soft_limit_is_raised(served_bundle: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/limits").exists():
        pytest.skip("limits of other processes are read from /proc")
    path = tmp_path / "socket"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with started(served_bundle, path, "ulimit -Sn 128", stdout=nowhere, stderr=nowhere) as process:
        wait_for(lambda: answers(path))
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        (row,) = [row for row in limits.splitlines() if row.startswith("Max open files")]
        assert int(row.split()[3]) > 128
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    os.close(nowhere)
