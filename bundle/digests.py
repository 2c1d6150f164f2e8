"""Sizes and SHA-256 of a bundle's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

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
