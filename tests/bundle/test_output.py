from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from specexport.atomic import NEW, OLD, temporary_folder
from specexport.bundle import MANIFEST
from specexport.bundle.output import check_free, new_folder
from specexport.errors import OutputError
from support.refusals import refused


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The temporary folder of a build of `out` that is at work in another process."""
    script = "import pathlib, sys; from specexport.atomic import temporary_folder\n"
    script += "with temporary_folder(pathlib.Path(sys.argv[1])) as folder:"
    script += " print(folder.parent, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Path(process.stdout.readline().strip())
        process.communicate()


def make_bundle(folder: Path, content: str = "old") -> Path:
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(content)
    return folder


def test_the_folder_appears_at_the_end_only(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "out", False) as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert names(tmp_path / "deep") == ["out"]
    assert names(tmp_path / "deep" / "out") == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), new_folder(tmp_path / "out", False):
        raise error
    assert names(tmp_path) == []


def test_sigterm_leaves_nothing_and_the_handler_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, new_folder(tmp_path / "out", False):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert names(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_exists_is_kept_without_force(tmp_path: Path) -> None:
    old = make_bundle(tmp_path / "out")
    with refused(OutputError, "--output", "--force", code="output_exists"), new_folder(old, False):
        pass
    assert (old / MANIFEST).read_text() == "old"


def test_force_replaces_a_bundle_whole(tmp_path: Path) -> None:
    old = make_bundle(tmp_path / "out")
    (old / "stale").touch()
    with new_folder(old, True) as folder:
        (folder / MANIFEST).write_text("new")
        assert (old / MANIFEST).read_text() == "old"
    assert names(tmp_path) == ["out"]
    assert names(old) == [MANIFEST]
    assert (old / MANIFEST).read_text() == "new"


def test_a_failed_replacement_keeps_the_old_bundle(tmp_path: Path) -> None:
    old = make_bundle(tmp_path / "out")
    with pytest.raises(RuntimeError), new_folder(old, True):
        raise RuntimeError
    assert names(tmp_path) == ["out"]
    assert (old / MANIFEST).read_text() == "old"


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_force_never_replaces_anything_else(make: type, tmp_path: Path) -> None:
    other = tmp_path / "out"
    make(other)
    with refused(OutputError, "manifest.json", code="output_exists"), new_folder(other, True):
        pass
    with refused(OutputError, "--output", code="output_exists") as caught, new_folder(other, False):
        pass
    assert "--force" not in str(caught.value)  # which would be refused in turn
    assert other.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_errors_of_the_disk_are_output_errors(code: int, tmp_path: Path) -> None:
    with refused(OutputError, code=("disk_full", "output_failed")), new_folder(tmp_path / "out", False) as folder:
        raise OSError(code, os.strerror(code), str(folder / "weights"))
    assert names(tmp_path) == []


def test_a_full_disk_that_numpy_reports_without_a_number(tmp_path: Path) -> None:
    """As the weights of a build are written."""
    with refused(OutputError, "the disk is full", code="disk_full"), new_folder(tmp_path / "out", False):
        with Path("/dev/full").open("wb") as file:
            np.zeros(100_000).tofile(file)
    assert names(tmp_path) == []


def test_a_place_that_nothing_can_be_written_to_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(folder: Path, **options: bool) -> None:
        if not options:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(OutputError) as caught, new_folder(tmp_path / "out", False):
        pass
    assert str(caught.value) == f"{tmp_path}/out cannot be made: Permission denied; choose another --output"
    assert caught.value.field == "output"


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path, **_: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", forbidden)
    with refused(OutputError, "Permission denied", "choose another --output", field="output"):
        check_free(tmp_path / "out", False)


def test_a_place_that_cannot_be_written_to_is_told_before_the_work(tmp_path: Path) -> None:
    unwritable = Path("/proc")  # for every user, root too
    with refused(OutputError, unwritable, "choose another --output", field="output"):
        check_free(unwritable / "out", False)
    check_free(tmp_path / "new" / "out", False)
    assert names(tmp_path) == []


def test_a_mount_point_is_told_before_the_work() -> None:
    """As of a container's volume: to rename it fails at the end."""
    for force in (None, False, True):
        with refused(OutputError, "/proc", "a folder in it", field="output"):
            check_free(Path("/proc"), force)


@pytest.mark.parametrize("place", [".", ".."])
def test_a_bundle_that_has_no_name_there(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = make_bundle(tmp_path / "out") / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside.parent if place == "." else inside)
    with refused(OutputError, place, "--output", field="output"), new_folder(Path(place), True):
        pass


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_force_keeps_what_is_no_bundle_and_came_during_the_build(make: Callable[[Path], None], tmp_path: Path) -> None:
    final = tmp_path / "out"
    with refused(OutputError, "manifest.json", code="output_exists"), new_folder(final, True):
        make(final)
    assert names(tmp_path) == ["out"]
    assert final.is_dir() == (make is Path.mkdir)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no"), SystemExit(143)])
def test_a_replacement_that_fails_half_way_puts_the_old_bundle_back(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_bundle(tmp_path / "out")
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == NEW:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((OutputError, SystemExit)), new_folder(old, True) as folder:
        (folder / MANIFEST).write_text("new")
    assert names(tmp_path) == ["out"]
    assert (old / MANIFEST).read_text() == "old"


LEFT = "tmp-abc01234"  # of a build that was killed: nobody holds its lock


def test_what_a_killed_build_left_goes_with_the_next(tmp_path: Path, held: Path) -> None:
    for name in (f".out.{LEFT}", f".other.{LEFT}", ".out.tmp-of-mine"):
        (tmp_path / name).mkdir()
    with temporary_folder(tmp_path / "out"):
        pass
    assert names(tmp_path) == sorted([f".other.{LEFT}", ".out.tmp-of-mine", held.name])
    assert names(held) == [NEW]


def test_a_bundle_put_aside_by_a_killed_replacement_comes_back(tmp_path: Path) -> None:
    make_bundle(tmp_path / f".out.{LEFT}" / OLD)
    with temporary_folder(tmp_path / "out"):
        pass
    assert names(tmp_path) == ["out"]
    make_bundle(tmp_path / f".out.{LEFT}" / OLD, "older")
    with temporary_folder(tmp_path / "out"):
        pass
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / MANIFEST).read_text() == "old"
