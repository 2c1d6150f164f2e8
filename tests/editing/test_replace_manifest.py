"""In which order another manifest is written: what it names is on the disk before it is, whenever the power goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specexport.bundle import MANIFEST, Bundle, FileEntry, list_files, sha256, write_manifest
from specexport.editing import replace_manifest as module
from specexport.editing.replace_manifest import replace_manifest
from support.doubles import write_bundle


def test_files_then_the_manifest_then_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, scratch = tmp_path / "a.bundle", tmp_path / "a.bundle/scratch"
    made = write_bundle(root)
    manifest = replace(made.manifest, files=list_files(root))
    write_manifest(root, manifest)
    before = Bundle.open(root)
    scratch.mkdir()
    (scratch / "new").write_bytes(b"plan")
    place = root / "engines/new"
    steps = list[tuple[str, bool, bytes]]()

    def sync(path: Path) -> None:
        steps.append((path.relative_to(root).as_posix(), place.exists(), (root / MANIFEST).read_bytes()))

    monkeypatch.setattr(module, "sync", sync)
    added = {"engines/new": FileEntry(4, sha256(scratch / "new"))}
    old = (root / MANIFEST).read_bytes()
    manifest = replace(before.manifest, files=before.manifest.files | added)
    replace_manifest(before, manifest, scratch, {scratch / "new": place}, "tensorrt")
    new = (root / MANIFEST).read_bytes()
    assert steps == [("engines", True, old), (f"scratch/{MANIFEST}", True, old), (".", True, new)]
    assert new != old
