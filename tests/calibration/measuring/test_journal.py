"""The journal of a long run: what it keeps, what it refuses, and that one run at a time writes it."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest
from specexport.calibration.measuring.journal import Journal, Step
from specexport.errors import OutputError
from support.refusals import refused, says

HEADER = {"bundle": "abc", "settings": {"seed": 0, "list": (1, 2)}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some" / "runs" / "bench.jsonl"


def filled(path: Path, count: int = 3) -> list[bytes]:
    with Journal.open(path, HEADER) as journal:
        for number in range(count):
            journal.add(f"0/{number}", {"value": number, "parts": [number, None]})
    return path.read_bytes().splitlines(keepends=True)


def reopened(path: Path) -> tuple[dict[str, object], bool]:
    with Journal.open(path, HEADER) as journal:
        return dict(journal.finished), journal.replaced


def refusal(path: Path, header: dict[str, object] = HEADER) -> str:
    with pytest.raises(OutputError) as caught:
        Journal.open(path, header)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_run_goes_on_where_it_stopped(path: Path) -> None:
    filled(path, 2)
    with Journal.open(path, HEADER) as journal:
        assert not journal.replaced
        assert list(journal.finished) == ["0/0", "0/1"]
        journal.add("0/2", {"value": 2})
        assert journal.finished["0/2"] == {"value": 2}
    found, replaced = reopened(path)
    assert not replaced
    assert found == {
        "0/0": {"value": 0, "parts": [0, None]},
        "0/1": {"value": 1, "parts": [1, None]},
        "0/2": {"value": 2},
    }


def test_rows_are_on_the_disk_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is whole in the file when `add` returns, and the disk was told to keep it."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with Journal.open(path, HEADER) as journal:
        journal.add("a", {"x": 1})
        assert path.read_bytes().splitlines()[1:] == [b'{"key": "a", "row": {"x": 1}}']
        assert synced[-1] == path.stat().st_size
        journal.add("b", {})
        assert synced[-1] == path.stat().st_size
        assert len(synced) == 3


@pytest.mark.parametrize("cut", [1, 30])
def test_a_torn_last_line_is_dropped(cut: int, path: Path) -> None:
    lines = filled(path)
    assert len(lines[-1]) > cut
    path.write_bytes(b"".join(lines)[:-cut])
    with Journal.open(path, HEADER) as journal:
        assert list(journal.finished) == ["0/0", "0/1"]
        assert not journal.replaced
        journal.add("next", {})
    assert path.read_bytes() == b"".join(lines[:-1]) + b'{"key": "next", "row": {}}\n'


@pytest.mark.parametrize("size", [0, 5, 20])
def test_a_run_that_was_killed_at_its_first_line(size: int, path: Path) -> None:
    header = filled(path, 0)[0]
    path.write_bytes(header[:size])
    assert reopened(path) == ({}, False)
    assert path.read_bytes() == header


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"",
        b"\xff\xff",
        b"\0\0\0",
        b"[1]",
        b'{"key": "a"}',
        b'{"key": 1, "row": {}}',
        b'{"key": "a", "row": 1}',
        b'{"key": "a", "row": {}, "more": 1}',
        b'{"key": "0/0", "row": {}}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("place", [2, 3])
def test_any_other_broken_line_is_an_error(line: bytes, place: int, path: Path) -> None:
    """In the middle, and as the last line where it is whole."""
    lines = filled(path, 2)
    lines.insert(place, line + b"\n")
    before = b"".join(lines)
    path.write_bytes(before)
    says(refusal(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "header", [{}, {"bundle": "abc"}, HEADER | {"more": 1}, HEADER | {"settings": {"seed": 0, "list": [2, 1]}}]
)
def test_the_file_of_another_run_is_replaced(header: dict[str, object], path: Path) -> None:
    filled(path)
    with Journal.open(path, header) as journal:
        assert journal.replaced
        assert journal.finished == {}
        journal.add("a", {})
    with Journal.open(path, header) as journal:
        assert not journal.replaced
        assert list(journal.finished) == ["a"]
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    "content", [b"# Notes\n", b'{"route": "a", "prompt": "b"}\n', b"no newline", b"\n", b'{"journal": 1}\n', b"\0" * 50]
)
def test_a_file_that_is_no_journal_is_left_alone(content: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    says(refusal(path), "header")
    assert path.read_bytes() == content


def test_one_run_at_a_time(path: Path) -> None:
    with Journal.open(path, HEADER) as journal:
        says(refusal(path))
        says(refusal(path, {"other": 1}))
        journal.add("a", {})
    assert list(reopened(path)[0]) == ["a"]


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal.open(path, HEADER) as journal:
        monkeypatch.setattr(os, "fsync", full)
        with refused(OutputError):
            journal.add("a", {})
        assert journal.finished == {}
    says(refusal(path.with_name("new.jsonl")))


def test_what_an_earlier_run_left_out_is_not_waited_for(tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    with Journal.open(tmp_path / "journal.jsonl", {}) as journal:
        journal.add("a", {})
        journal.add("c", {})
        done: list[str] = []
        steps = [Step(key, lambda: 2.0, partial(done.append, key)) for key in "abcdef"]
        journal.take(steps, lambda *progress: shown.append(progress))
    assert "".join(done) == "abcdef"
    assert shown == [(6, 12), (8, 12), (10, 12), (12, 12)]
