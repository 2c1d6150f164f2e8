"""A bundle's files on disk: their digests, copies that share blocks, and the space that they need.

Copies share blocks where the file system can do that. They are never hard links: onnx refuses weights in a file that
has more than one name, so no tool of its would open a bundle.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from ..atomic import TEMPORARY
from ..errors import OutputError
from .manifest import MANIFEST, FileEntry

BLOCK = 1 << 20


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:  # hashlib.file_digest needs Python 3.11
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def list_files(root: Path) -> dict[str, FileEntry]:
    """Every file below `root` except the manifest, by its path relative to `root`, with size and digest."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(root).as_posix(): FileEntry(path.stat().st_size, sha256(path)) for path in found}


# `FICLONE` of linux/fs.h, see ioctl_ficlone(2): btrfs, XFS, bcachefs and others.
FICLONE = 0x40049409


def clone_or_copy(source: Path, destination: Path) -> None:
    """Make `destination`, and its folder if need be. Raises `OutputError` when it cannot be written."""
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as original, destination.open("wb") as clone:
            shared = _share(original, clone)
        if not shared:
            shutil.copyfile(source, destination)
    except OSError as error:
        raise OutputError(f"{destination} cannot be written: {error.strerror}") from None


def can_clone(source: Path, destination: Path) -> bool:
    """Whether files of the folder `source` take no more space when `destination`, another folder, has them too."""
    # Without names where the system can do that, so that nothing stays of a process that is killed here.
    with tempfile.TemporaryFile(dir=source) as one, tempfile.TemporaryFile(dir=destination) as other:
        one.write(b"a block")
        one.flush()
        return _share(one, other)


def _share(original: IO[bytes], clone: IO[bytes]) -> bool:
    """False where the file system, or the system, does not share blocks."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(clone, FICLONE, original.fileno())
    except OSError:
        return False
    return True


def require_space(folder: Path, needed: int) -> None:
    """Raises `OutputError` when the disk of `folder` has fewer than `needed` bytes free."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise OutputError(
            f"{_final_path(folder)} needs {_size(needed, math.ceil)}, but only {_size(free, math.floor)} are free on "
            "its disk; free some",
            code="disk_full",
        )


def _final_path(folder: Path) -> Path:
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
