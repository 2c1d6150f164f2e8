from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from specexport.bundle import files as disk_space
from specexport.bundle.files import require_space, require_space_for
from specexport.errors import OutputError
from support.refusals import refused

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
    monkeypatch.setattr(disk_space, "can_clone", lambda *_: clones)
    for key in finished:
        (folders[0] / key).mkdir()
    free(needed)
    require_space_for(STAGES, *folders, further)
    if needed:
        free(needed - 1)
        with pytest.raises(OutputError):
            require_space_for(STAGES, *folders, further)
