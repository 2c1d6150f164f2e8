"""Free disk space, checked before a build starts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import OutputError
from .atomic_folder import TEMPORARY
from .copy_on_write import can_clone


def require_space(folder: Path, needed: int) -> None:
    """Raises `OutputError` when the disk of `folder` has fewer than `needed` bytes free."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise OutputError(
            f"{_as_given(folder)} needs {_size(needed, math.ceil)}, but only {_size(free, math.floor)} are free on its "
            "disk; free some",
            code="disk_full",
        )


def _as_given(folder: Path) -> Path:
    """What a temporary folder will become, since nobody knows its own name."""
    for place in (folder, *folder.parents):
        found = TEMPORARY.fullmatch(place.name)
        if found is not None:
            return place.with_name(found[1])
    return folder


def _size(count: int, whole: Callable[[float], int]) -> str:
    """In GB with one decimal, or in MB below one. whole: rounds, up what is needed and down what is free."""
    return f"{whole(count / 1e8) / 10:.1f} GB" if count >= 1e9 else f"{whole(count / 1e6)} MB"


def require_space_for(stages: Mapping[str, int], cache: Path, output: Path, further: int = 0) -> None:
    """Raises `OutputError` where finished stages do not fit into `cache` and into `output`, which gets all of them too.

    stages: bytes by key. A stage that is there takes no more in the cache, and none takes more in the output where the
    two share blocks. further: bytes that go into the output besides.
    """
    missing = sum(size for key, size in stages.items() if not (cache / key).is_dir())
    copied = further + (0 if can_clone(cache, output) else sum(stages.values()))
    if cache.stat().st_dev == output.stat().st_dev:
        require_space(output, missing + copied)
    else:
        require_space(cache, missing)
        require_space(output, copied)
