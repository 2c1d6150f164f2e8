"""What appears whole: what a killed process leaves goes with the next write, and what a living one has stays.

Locks end with their process (tests/exporter/test_killed.py); here also a system that has none.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from specexport import atomic
from specexport.atomic import alone, lock, swap, temporary_file, temporary_folder, write_whole
from specexport.calibration.measuring.journal import Journal
from specexport.errors import OutputError

LEFT = "tmp-0123abcd"  # of a process that was killed: nobody holds its lock
WRITES = """
import sys
from pathlib import Path
from specexport.atomic import temporary_file
with temporary_file(Path(sys.argv[1]), b"half"):
    print("writing", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a write."""
    command = [sys.executable, "-c", WRITES, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with writer(path) as process:
        (half,) = names(tmp_path)
        assert half.startswith(".costs.json.tmp-")
        write_whole(path, b"whole")
        assert names(tmp_path) == [half, "costs.json"]
        process.kill()
        process.wait()
        assert names(tmp_path) == [half, "costs.json"]
        write_whole(path, b"newer")
    assert names(tmp_path) == ["costs.json"]
    assert path.read_bytes() == b"newer"


def test_a_write_that_fails_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert names(tmp_path) == ["a"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("able", [True, False])  # whether the file system syncs folders
def test_content_is_synced_before_the_rename_and_the_folder_after_it(
    able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a", list[tuple[bool, bool]]()

    def fsync(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((folder, path.exists()))
        if folder and not able:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.fsync", fsync)
    write_whole(path, b"text")
    assert synced == [(False, False), (True, True)]
    assert path.read_bytes() == b"text"


def test_all_of_a_folder_is_synced_before_it_replaces_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final, synced = tmp_path / "bundle", list[tuple[str, bool]]()
    final.mkdir()

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, (final / "graphs").exists()))

    monkeypatch.setattr("os.fsync", fsync)
    with temporary_folder(final) as made:
        (made / "graphs").mkdir()
        (made / "graphs/weights").write_bytes(b"1")
        swap(made, final)
    assert sorted(synced) == [("graphs", False), ("new", False), (tmp_path.name, True), ("weights", False)]


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("folder", [False, True])
def test_what_another_process_takes_for_left_is_made_again(
    folder: bool, removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock. removed: already, or about to be."""
    locked, taken = lock, list[int]()

    def lock_late(file: int) -> None:
        if not taken:
            (path,) = tmp_path.iterdir()
            if removed:
                path.rmdir() if folder else path.unlink()
            else:
                taken.append(os.open(path, os.O_RDONLY))
                locked(taken[0])
        locked(file)
        taken.append(-1)

    monkeypatch.setattr(atomic, "lock", lock_late)
    with temporary_folder(tmp_path / "a") if folder else temporary_file(tmp_path / "a", b"text") as made:
        assert made.is_dir() if folder else made.read_bytes() == b"text"
        assert len(names(tmp_path)) == 1 + (not removed)
    if not removed:
        os.close(taken[0])


@pytest.mark.parametrize("error", [OSError(95, "Operation not supported"), OutputError("no locks")])
def test_without_locks_it_writes_and_what_was_left_stays(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(file: int) -> None:
        raise error

    (tmp_path / f".a.{LEFT}").touch()
    monkeypatch.setattr(atomic, "lock", none)
    write_whole(tmp_path / "a", json.dumps("x").encode())
    with alone(tmp_path):
        assert names(tmp_path) == [f".a.{LEFT}", "a"]


IMPORTS = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from specexport.calibration.measuring import journal
from specexport import atomic
from specexport.bundle import output
"""


def build(folder: Path) -> None:
    with temporary_folder(folder / "out"):
        pass


def measure(folder: Path) -> None:
    Journal.open(folder / "journal.jsonl", {})


@pytest.mark.parametrize("use", [build, measure])
def test_a_system_without_locks_is_named(
    use: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "fcntl", None)
    with pytest.raises(OutputError, match=sys.platform) as caught:
        use(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_locks_imports_without_them() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True)


def test_where_no_folder_can_be_made_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /proc, where making one fails with what else tells of another process that removed it."""
    real = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        if LEFT[:4] in path.name:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        real(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(FileNotFoundError, match=str(tmp_path)), temporary_folder(tmp_path / "x"):
        pass
