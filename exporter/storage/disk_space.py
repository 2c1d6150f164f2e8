"""Room on disks, looked up before a build starts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ...errors import OutputError
from .copy_on_write import can_clone


def require_space(folder: Path, needed: int) -> None:
    """Raises `OutputError` when the disk of `folder` has fewer than `needed` bytes free."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(
            f"the build needs {needed / 1e9:.1f} GB under {folder}, but only {free / 1e9:.1f} GB are free; free some"
        )


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
