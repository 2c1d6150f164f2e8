"""Accepting connections where descriptors run out, and how many of them a server may count on."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket

import pytest
from specexport.errors import EngineError
from specexport.serve.http import accepting
from specexport.serve.http.accepting import AT_ONCE, SPARE_FILES, Acceptor, affordable, connections_of


class Exhausted(socket.socket):
    """`accept` fails `left` times."""

    left, number = 0, errno.EMFILE

    def accept(self) -> tuple[socket.socket, object]:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        return super().accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_it_makes_room_and_tries_again(
    number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specexport.serve.http.accepting.PAUSE", 0.001)
    caplog.set_level(logging.INFO)
    asked: list[int] = []

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")
            transport.close()

    async def main() -> bytes:
        with Exhausted() as listening:
            listening.left, listening.number = 50, number
            listening.bind(("127.0.0.1", 0))
            acceptor = Acceptor(listening, Greeting, asked.append)
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            found = await reader.read()
            writer.close()
            acceptor.close()
            acceptor.close()
            return found

    assert asyncio.run(main()) == b"hello"
    assert asked == [AT_ONCE] * 50
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # not one for each
    assert os.strerror(number) in caplog.text


def test_it_stops_while_it_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.serve.http.accepting.PAUSE", 0.01)

    async def main() -> None:
        listening = Exhausted()
        listening.left = 1000
        listening.bind(("127.0.0.1", 0))
        acceptor = Acceptor(listening, asyncio.Protocol, lambda count: None)
        with socket.create_connection(listening.getsockname()):
            while listening.left == 1000:
                await asyncio.sleep(0.001)
            acceptor.close()
            left = listening.left
            await asyncio.sleep(0.05)
            assert listening.left == left

    asyncio.run(main())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> int:
    """As if so many descriptors were open or set aside."""
    monkeypatch.setattr(accepting, "_open_files", lambda: 10)
    return 10 + SPARE_FILES


def limit(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, refuses: bool = False) -> list[int]:
    """The soft limits that are set from now on."""
    found: list[int] = []

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        if refuses:
            raise ValueError("not allowed to raise maximum limit")
        assert limits[1] == hard
        found.append(limits[0])

    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return found


@pytest.mark.parametrize("hard", [100_000, resource.RLIM_INFINITY])
def test_the_soft_limit_is_raised_as_far_as_needed(taken: int, monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    found = limit(monkeypatch, 100, hard)
    assert affordable(256) == 256
    assert found == [taken + connections_of(256)]


@pytest.mark.parametrize("soft", [100_000, resource.RLIM_INFINITY])
def test_a_soft_limit_that_suffices_stays(taken: int, monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    found = limit(monkeypatch, soft, soft)
    assert affordable(256) == 256
    assert found == []


@pytest.mark.parametrize(("soft", "hard", "refuses"), [(256, 256, False), (128, 256, False), (256, 9999, True)])
def test_fewer_requests_than_wanted(
    taken: int, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, refuses: bool
) -> None:
    limit(monkeypatch, soft, hard, refuses)
    found = affordable(256)
    assert taken + connections_of(found) <= 256 < taken + connections_of(found + 1)


def test_no_room_for_any(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    least = taken + connections_of(1)
    limit(monkeypatch, least, least)
    assert affordable(256) == 1
    limit(monkeypatch, least - 1, least - 1)
    with pytest.raises(EngineError, match=f"may open {least - 1} files.*needs {least}"):
        affordable(256)
