"""The command where something is missing: a reader of its log, descriptors, a reader of stdout."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pytest
from support.serving import PATIENCE, STARTED, wait_for


def asked(path: Path, line: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        connection.sendall(f"GET {line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(10_000), b""))


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
        # More than the log holds: one line has some 280 bytes.
        long = "/v1/models/" + "x" * 180
        assert all(b" 404 " in asked(path, long) for _ in range(4000))
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


FLOODS: dict[str, Callable[[socket.socket], object]] = {
    "idle": lambda connection: None,
    "half a head": lambda connection: connection.sendall(b"GET /hea"),
    "kept alive": lambda connection: connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="open descriptors cannot be counted")
@pytest.mark.parametrize("limit", ["-n 256", "-n 100"])
@pytest.mark.parametrize("flood", FLOODS)
def test_more_connections_than_descriptors(served_bundle: Path, tmp_path: Path, limit: str, flood: str) -> None:
    path, log = tmp_path / "socket", tmp_path / "log"
    with log.open("wb") as errors, started(served_bundle, path, f"ulimit {limit}", stderr=errors.fileno()) as process:
        wait_for(lambda: answers(path))
        with ExitStack() as held:
            for _ in range(300):
                connection = held.enter_context(socket.socket(socket.AF_UNIX))
                connection.connect(str(path))
                with suppress(BrokenPipeError, ConnectionResetError):
                    FLOODS[flood](connection)
            for line in ("/health", "/ready", "/v1/models"):
                assert asked(path, line).startswith(b"HTTP/1.1 200")
        assert answers(path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    text = log.read_text()
    assert "Too many open files" not in text
    assert len(text.splitlines()) < 320  # a line for each request


def test_too_few_descriptors_for_any_request(served_bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as errors:
        with started(served_bundle, tmp_path / "socket", "ulimit -n 40", stderr=errors.fileno()) as process:
            assert process.wait(PATIENCE) == 1
    (line,) = log.read_text().splitlines()
    assert "ulimit -n" in line


def test_a_soft_limit_is_raised(served_bundle: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/limits").exists():
        pytest.skip("limits of other processes are read from /proc")
    path = tmp_path / "socket"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with started(served_bundle, path, "ulimit -Sn 128", stdout=nowhere, stderr=nowhere) as process:
        wait_for(lambda: answers(path))
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        (row,) = [row for row in limits.splitlines() if row.startswith("Max open files")]
        assert int(row.split()[3]) > 528
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    os.close(nowhere)
