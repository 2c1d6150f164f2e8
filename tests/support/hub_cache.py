"""A folder as the cache of huggingface_hub keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from specexport.bundle import sha256


def in_the_hubs_layout(root: Path, cache: Path) -> Path:
    """As huggingface_hub keeps a bundle: every file, the manifest too, is a link to a blob named by its digest."""
    snapshot = cache / "snapshots" / "0123abc"
    for path in [path for path in root.rglob("*") if path.is_file()]:
        blob, link = cache / "blobs" / sha256(path), snapshot / path.relative_to(root)
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(path.read_bytes())
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot
