from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from specexport.bundle import files as copy_on_write
from specexport.bundle.files import can_clone, clone_or_copy
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

    def clone(source: Path, destination: Path) -> bool:
        cloned.append(destination)
        return destination.name == "cloned"

    monkeypatch.setattr(copy_on_write, "_clone", clone)
    for name in ("cloned", "copied"):
        clone_or_copy(source, tmp_path / name)
    assert [path.name for path in cloned] == ["cloned", "copied"]
    assert not (tmp_path / "cloned").exists()
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
    monkeypatch.setattr(copy_on_write, "_clone", lambda *_: False)
    with refused(OutputError):
        clone_or_copy(source, tmp_path / "made")
