"""A folder as the cache of huggingface_hub keeps it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from specexport.bundle import sha256

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_with(root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of `org/tiny`, the bundle at `root`, in a cache that huggingface_hub looks into; no hub is asked."""
    constants = pytest.importorskip("huggingface_hub.constants")
    repository = folder / "hub/models--org--tiny"
    snapshot = in_the_hubs_layout(root, repository)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(folder)
    return snapshot


def in_the_hubs_layout(root: Path, cache: Path) -> Path:
    """As huggingface_hub keeps a bundle: every file, the manifest too, is a link to a blob named by its digest."""
    snapshot = cache / "snapshots" / COMMIT
    for path in [path for path in root.rglob("*") if path.is_file()]:
        blob, link = cache / "blobs" / sha256(path), snapshot / path.relative_to(root)
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(path.read_bytes())
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot
