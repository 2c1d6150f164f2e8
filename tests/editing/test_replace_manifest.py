"""In which order another manifest is written: what it names is on the disk before it is, whenever the power goes."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.atomic import locked
from specexport.bundle import MANIFEST, Bundle, FileEntry, list_files, sha256, write_manifest
from specexport.editing import replace_manifest as module
from specexport.editing.replace_manifest import replace_manifest
from specexport.errors import OutputError
from support.doubles import write_bundle
from support.refusals import refused


def _with_a_plan(folder: Path) -> tuple[Bundle, Path, Path]:
    """A bundle, a folder in it with the new file, and where that is to go."""
    root, scratch = folder / "a.bundle", folder / "a.bundle/scratch"
    made = write_bundle(root)
    write_manifest(root, replace(made.manifest, files=list_files(root)))
    scratch.mkdir()
    (scratch / "new").write_bytes(b"plan")
    return Bundle.open(root), scratch, root / "engines/new"


def test_files_then_the_manifest_then_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, scratch, place = _with_a_plan(tmp_path)
    root = before.root
    steps = list[tuple[str, bool, bytes]]()

    def sync(path: Path) -> None:
        steps.append((path.relative_to(root).as_posix(), place.exists(), (root / MANIFEST).read_bytes()))

    monkeypatch.setattr(module, "sync", sync)
    added = {"engines/new": FileEntry(4, sha256(scratch / "new"))}
    old = (root / MANIFEST).read_bytes()
    manifest = replace(before.manifest, files=before.manifest.files | added)
    replace_manifest(before, manifest, scratch, {"engines/new": scratch / "new"})
    new = (root / MANIFEST).read_bytes()
    assert steps == [("engines", True, old), (f"scratch/{MANIFEST}", True, old), (".", True, new)]
    assert new != old


def test_without_locks_it_replaces_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before, scratch, place = _with_a_plan(tmp_path)
    monkeypatch.setattr("specexport.atomic.lock", none)
    replace_manifest(before, before.manifest, scratch, {"engines/new": scratch / "new"})
    assert place.exists()


def test_what_another_command_changes_or_changed_is_left_as_it_is(tmp_path: Path) -> None:
    before, scratch, place = _with_a_plan(tmp_path)
    added = {"engines/new": FileEntry(4, sha256(scratch / "new"))}
    manifest = replace(before.manifest, files=before.manifest.files | added)
    with locked(before.root), refused(OutputError, "being changed", code="changed_meanwhile"):
        replace_manifest(before, manifest, scratch, {})
    replace_manifest(before, manifest, scratch, {"engines/new": scratch / "new"})
    with refused(OutputError, "meantime", code="changed_meanwhile"):
        replace_manifest(before, before.manifest, scratch, {})
    assert place.exists()
