"""Put a file into a second place, sharing its blocks where the file system can do that, else as a copy.

Never as a hard link: onnx refuses weights in a file that has more than one name, so no tool of its would open a bundle.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

from ...errors import OutputError

# `FICLONE` of linux/fs.h, see ioctl_ficlone(2): btrfs, XFS, bcachefs and others.
FICLONE = 0x40049409


def clone_or_copy(source: Path, destination: Path) -> None:
    """Make `destination`, and its folder if need be. Raises `OutputError` when it cannot be written."""
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        if not _clone(source, destination):
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


def _clone(source: Path, destination: Path) -> bool:
    """False where the file system, or the system, does not share blocks; then `destination` may be an empty file."""
    if sys.platform != "linux":
        return False
    with source.open("rb") as original, destination.open("wb") as clone:
        return _share(original, clone)


def _share(original: IO[bytes], clone: IO[bytes]) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(clone, FICLONE, original.fileno())
    except OSError:
        return False
    return True
