"""What is uploaded of a bundle, and what is not; the hub's client is a double."""

from __future__ import annotations

import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Bundle
from specexport.editing.push import push
from specexport.errors import OutputError
from support.refusals import refused

huggingface_hub = pytest.importorskip("huggingface_hub")


class FakeHub:
    def __init__(self, **_: object) -> None:
        self.has_card = False
        self.private: bool | None = None
        self.asked = False
        self.card = ""
        self.uploaded: list[str] = []
        self.broken = False

    def create_repo(self, repository: str, private: bool | None, exist_ok: bool) -> str:
        assert exist_ok
        if self.broken:
            raise RuntimeError("401\nsecond line")
        self.private, self.asked = private, True
        return f"https://hub/{repository}"

    def file_exists(self, repository: str, name: str) -> bool:
        return self.has_card

    def upload_file(self, path_or_fileobj: bytes, path_in_repo: str, repo_id: str) -> None:
        assert path_in_repo == "README.md"
        self.card = path_or_fileobj.decode()

    def upload_folder(self, repo_id: str, folder_path: Path, allow_patterns: list[str]) -> None:
        names = [path.relative_to(folder_path).as_posix() for path in folder_path.rglob("*") if path.is_file()]
        self.uploaded = [name for name in names if any(fnmatch(name, pattern) for pattern in allow_patterns)]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: fake)
    return fake


def test_the_manifest_s_files_go_and_what_was_measured_here_stays(hub: FakeHub, built: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built, tmp_path / "b.bundle"))
    for name in ("policy.json", "costs.json", "report.md", "calibration.journal"):
        (folder / name).write_text("of this host")
    bundle = Bundle.open(folder)
    assert push(bundle, "org/tiny", private=True) == "https://hub/org/tiny"
    assert sorted(hub.uploaded) == sorted([*bundle.manifest.files, "manifest.json"])
    assert hub.private is True
    assert "library_name: specexport" in hub.card
    assert "\n    pip install ./kernels '.[cli,chat,onnxruntime,hub]' " in hub.card
    assert "base_model" not in hub.card  # the checkpoints are folders


@pytest.mark.parametrize(
    ("engine", "extra"), [("onnxruntime-cuda", "onnxruntime-gpu"), ("tensorrt-rtx", "tensorrt-rtx"), ("later", "later")]
)
def test_the_card_installs_the_first_engine_by_its_extra(hub: FakeHub, built: Path, engine: str, extra: str) -> None:
    bundle = Bundle.open(built)
    push(Bundle(bundle.root, replace(bundle.manifest, engines=(engine, "onnxruntime"))), "org/tiny")
    assert f"[cli,chat,{extra},hub]" in hub.card


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "org/tiny@main", "../x", "org/tiny.bundle"])
def test_a_wrong_name_is_refused_before_the_hub_is_asked(hub: FakeHub, built: Path, name: str) -> None:
    with refused(OutputError, "org/name", field="repository"):
        push(Bundle.open(built), name)
    assert not hub.asked


def test_checkpoints_of_the_hub_are_the_base_models(hub: FakeHub, built: Path) -> None:
    bundle = Bundle.open(built)
    target: Any = replace(bundle.manifest.target, source="org/target")
    push(Bundle(bundle.root, replace(bundle.manifest, target=target)), "org/tiny")
    assert "base_model:\n- org/target\n---" in hub.card
