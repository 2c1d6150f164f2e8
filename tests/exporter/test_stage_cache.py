from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import specexport
from specexport.atomic import discard, lock
from specexport.errors import OutputError
from specexport.exporter import export_model, stage_cache
from specexport.exporter.stage_cache import UNUSED_DAYS, finished_stage, make_stage, open_cache, stage_key
from support.refusals import refused

KEY = "0123456789abcdef" * 2
LONG_AGO = time.time() - (UNUSED_DAYS + 1) * 86400


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(b"abc")


def age(folder: Path) -> Path:
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder


def test_a_stage_is_found_again(tmp_path: Path) -> None:
    assert finished_stage(tmp_path, KEY) is None
    folder = make_stage(tmp_path / "cache", KEY, write)
    assert finished_stage(tmp_path / "cache", KEY) == folder
    assert (folder / "weights").read_bytes() == b"abc"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [KEY]


def test_a_failed_stage_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        make_stage(tmp_path, KEY, fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", ["flip", "remove", "add", "record", "bytes", "no record"])
def test_a_harmed_stage_is_removed(harm: str, tmp_path: Path) -> None:
    folder = make_stage(tmp_path, KEY, write)
    if harm == "flip":
        (folder / "weights").write_bytes(b"abd")
    elif harm == "remove":
        (folder / "weights").unlink()
    elif harm == "add":
        (folder / "more").touch()
    elif harm == "record":
        (folder / stage_cache.STAGE).write_text("{")
    elif harm == "bytes":
        (folder / stage_cache.STAGE).write_bytes(b"\xff")
    else:
        (folder / stage_cache.STAGE).unlink()
    assert finished_stage(tmp_path, KEY) is None
    assert not folder.exists()


def test_a_stage_that_another_process_finished_first_is_kept(tmp_path: Path) -> None:
    def slow(folder: Path) -> None:
        write(folder)
        theirs.append((make_stage(tmp_path, KEY, write) / "weights").stat().st_ino)

    theirs: list[int] = []
    assert [(make_stage(tmp_path, KEY, slow) / "weights").stat().st_ino] == theirs
    assert [path.name for path in tmp_path.iterdir()] == [KEY]


def test_a_cache_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_cache(tmp_path / "deep" / "cache").is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "cache"):
        with refused(OutputError, "--cache", field="cache"):
            make_stage(path, KEY, write)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with refused(OutputError, "--cache", field="cache"):
        open_cache(tmp_path)


def test_stages_unused_for_long_go_and_used_ones_stay(tmp_path: Path) -> None:
    age(make_stage(tmp_path, "a" * 32, write))
    used = age(make_stage(tmp_path, "b" * 32, write))
    assert finished_stage(tmp_path, "b" * 32) == used
    make_stage(tmp_path, KEY, write)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["b" * 32, KEY])


def test_a_stage_that_another_build_discards_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was seen in the folder, or after its files were read."""
    make_stage(tmp_path, KEY, write)
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: is_dir(path) and (path.name != KEY or not discard(path)))
    make_stage(tmp_path, "a" * 32, write)
    monkeypatch.undo()
    files = stage_cache.list_files
    monkeypatch.setattr(stage_cache, "list_files", lambda path: (files(path), discard(path))[0])
    assert finished_stage(tmp_path, "a" * 32) is None


def test_what_killed_builds_left_of_any_stage_goes(tmp_path: Path) -> None:
    left, living = (tmp_path / f".{'c' * 32}.tmp-{name}" for name in ("abc01234", "abc05678"))
    left.mkdir()
    (tmp_path / ".photos.tmp-abc01234").mkdir()
    living.mkdir()
    descriptor = os.open(living, os.O_RDONLY)
    lock(descriptor)
    make_stage(tmp_path, KEY, write)
    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, ".photos.tmp-abc01234", KEY])


def test_nothing_of_the_users_is_ever_removed(tmp_path: Path) -> None:
    """--cache may name any folder."""
    mine = tmp_path / "photos"
    mine.mkdir()
    (mine / "one").touch()
    age(mine)
    make_stage(tmp_path, KEY, write)
    assert (mine / "one").exists()


def test_the_key_depends_on_inputs_versions_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    key = stage_key(__file__, role="draft")
    assert key == stage_key(__file__, role="draft")
    assert len(key) == 32
    assert key != stage_key(__file__, role="target")
    monkeypatch.setattr(stage_cache, "package_versions", lambda: {"torch": "0"})
    assert key != stage_key(__file__, role="draft")


@pytest.mark.slow
def test_whatever_a_stage_is_made_by_is_a_source() -> None:
    """Else exports of older code would be taken for today's. Proofs by layers, which a stage keeps, run engines."""
    found, root = set(stage_cache.sources(export_model.__file__)), Path(specexport.__file__).parent
    script = "import sys, specexport.exporter.export_model; print(*(m.__file__ for m in sys.modules.values() if"
    script += " m.__name__.startswith('specexport.') and m.__file__), sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    files = {Path(line) for line in loaded.splitlines()}
    empty = {file for file in files if file.name == "__init__.py" and file.stat().st_size < 200}  # a docstring alone
    assert {file for file in files - empty if file.parent != root} <= found
    assert root / "engines" / "onnxruntime" / "cpu.py" in found
    assert not found & {*root.joinpath("serve").rglob("*.py"), *root.joinpath("runtime", "policy").rglob("*.py")}
