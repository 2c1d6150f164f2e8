"""The files of a checkpoint's weights: what transformers would not load is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from specexport.errors import CheckpointError
from specexport.exporter.build import build
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.source import find_local
from support.pair import Notes
from support.refusals import refused
from support.tiny import edit_weights, save_checkpoint, shard

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "checkpoint")


def test_shards_without_their_index(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).unlink()
    with refused(CheckpointError, INDEX, "model-00001-of-00002.safetensors"):
        find_local(str(folder))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "tf_model.h5"])
def test_weights_in_another_format_only(name: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with refused(CheckpointError, name, "save_pretrained"):
        find_local(str(folder))


def test_a_file_that_was_cut_off_is_refused_before_the_weights_are_hashed(folder: Path, tmp_path: Path) -> None:
    path, notes = folder / "model.safetensors", Notes()
    path.write_bytes(path.read_bytes()[:-100])
    with refused(CheckpointError, "fully"):
        build(str(folder), None, tmp_path / "bundle", progress=notes)


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter(alone: bool, folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    if alone:
        for path in (folder / "config.json", folder / "model.safetensors"):
            path.unlink()
    with refused(CheckpointError, "merge_and_unload"):
        find_local(str(folder))


def test_a_weight_in_two_files_with_two_values(folder: Path) -> None:
    first, second = (folder / name for name in shard(folder))
    name, weight = next(iter(load_file(first).items()))
    edit_weights(second, **{name: weight.clone()})
    assert find_checkpoint(str(folder)).fp32_bytes > 0  # the same twice is no other model
    edit_weights(second, **{name: weight + 1})
    with refused(CheckpointError, "lm_head.weight", "model-00002-of-00002.safetensors"):
        find_checkpoint(str(folder)).fp32_bytes  # noqa: B018


@pytest.mark.parametrize(("name", "fact"), [("manifest.json", "bundle"), ("notes.txt", "config.json")])
def test_a_folder_that_is_no_checkpoint(name: str, fact: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with refused(CheckpointError, tmp_path, fact, "GGUF", code="checkpoint_not_found"):
        find_local(str(tmp_path))


def test_the_address_of_a_page_is_answered_with_the_name() -> None:
    for suffix in ("", "/blob/main/model.gguf"):
        with refused(CheckpointError, "as in org/tiny", code="checkpoint_not_found"):
            find_local(f"https://huggingface.co/org/tiny{suffix}")
