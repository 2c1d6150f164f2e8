from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from specexport.bundle import files
from specexport.bundle.files import can_clone, clone_or_copy, require_space, require_space_for
from specexport.errors import OutputError
from support.refusals import refused


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"abc")
    return path


def test_a_clone_is_not_copied_and_what_cannot_be_cloned_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned: list[Path] = []

    def share(original: IO[bytes], clone: IO[bytes]) -> bool:
        cloned.append(Path(clone.name))
        return cloned[-1].name == "cloned"

    monkeypatch.setattr(files, "_share", share)
    for name in ("cloned", "copied"):
        clone_or_copy(source, tmp_path / name)
    assert [path.name for path in cloned] == ["cloned", "copied"]
    assert (tmp_path / "cloned").read_bytes() == b""
    assert (tmp_path / "copied").read_bytes() == b"abc"


@pytest.mark.skipif(os.name != "posix", reason="needs fcntl")
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_that_shares_no_blocks(
    code: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.ioctl", refuse)
    assert not can_clone(tmp_path, tmp_path)
    clone_or_copy(source, tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == b"abc"


def test_what_cannot_be_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError):
        clone_or_copy(tmp_path / "gone", tmp_path / "made")

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", fail)
    monkeypatch.setattr(files, "_share", lambda *_: False)
    with refused(OutputError):
        clone_or_copy(source, tmp_path / "made")


GB = 1_000_000_000
STAGES = {"target": 4 * GB, "draft": GB}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the bytes free on every disk."""
    usage = namedtuple("usage", "total used free")
    return lambda size: monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(size, 0, size))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A cache and an output on one disk."""
    made = tmp_path / "cache", tmp_path / "output"
    for folder in made:
        folder.mkdir()
    return made


def test_a_small_disk_is_refused_beforehand(tmp_path: Path, free: Callable[[int], None]) -> None:
    free(2 * GB)
    require_space(tmp_path / "not" / "there", 2 * GB - 1)
    with refused(OutputError, "2.0", code="disk_full"):
        require_space(tmp_path / "not" / "there", 3 * GB)


@pytest.mark.parametrize(
    ("clones", "finished", "further", "needed"),
    [
        (False, (), 0, 10 * GB),  # in the cache, and in the output again
        (True, (), 0, 5 * GB),
        (False, ("target",), 0, 6 * GB),
        (True, ("target", "draft"), 0, 0),
        (True, ("target", "draft"), 7 * GB, 7 * GB),
    ],
)
def test_stages_and_their_copies_count(
    clones: bool,
    finished: tuple[str, ...],
    further: int,
    needed: int,
    folders: tuple[Path, Path],
    free: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "can_clone", lambda *_: clones)
    for key in finished:
        (folders[0] / key).mkdir()
    free(needed)
    require_space_for(STAGES, *folders, further)
    if needed:
        free(needed - 1)
        with pytest.raises(OutputError):
            require_space_for(STAGES, *folders, further)
