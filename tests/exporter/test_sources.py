"""What is refused of a draft that reads the target before anything slow is imported, and what is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from specexport.cli import main
from specexport.errors import (
    CheckpointError,
    EngineError,
    ParameterError,
    SpecExportError,
    UnsupportedModelError,
)
from specexport.exporter.options import BuildOptions, NamedDraft, parse_draft
from specexport.exporter.sources import check_sources, look_on_hub
from support.block_drafts import save_block, save_block_target
from support.hidden_drafts import FORMATS, WIDTH, save_original, save_speculators, save_target, tables, tensors
from support.mtp_layers import FAMILIES, saved
from support.refusals import refused, says
from support.tiny import VOCAB, edit_json, edit_weights


def check(target: object, draft: object, **options: Any) -> None:
    check_sources(str(target), [NamedDraft("draft", str(draft))], BuildOptions(**options))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_target(tmp_path / "target")


@pytest.mark.parametrize("name", FORMATS)
def test_a_draft_of_the_target_passes(name: str, target: Path, tmp_path: Path) -> None:
    check(target, FORMATS[name](tmp_path / "draft"))


@pytest.mark.parametrize("name", FAMILIES)
def test_an_mtp_layer_passes(name: str, tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES[name], tmp_path / "target")
    check(folder, "mtp", draft_vocabulary=8)


def test_a_model_of_its_own_passes(target: Path, tmp_path: Path) -> None:
    check(target, save_target(tmp_path / "draft", num_hidden_layers=1))
    check(target, "some/draft-of-the-hub", draft_taps=(1, 2, 3))


def test_longer_than_the_positions(target: Path, tmp_path: Path) -> None:
    draft = save_target(tmp_path / "draft", num_hidden_layers=1)
    check(target, draft, max_seq_len=64)
    for folder, called in ((draft, "draft"), (target, "target")):
        edit_json(folder / "config.json", max_position_embeddings=63)
        with refused(ParameterError, called, 63, field="max_seq_len"):
            check(target, draft, max_seq_len=64)
        edit_json(folder / "config.json", rope_scaling={"rope_type": "linear", "factor": 2.0})
        check(target, draft, max_seq_len=64)


def test_too_few_calibration_prompts(target: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "few.jsonl"
    prompts.write_text('{"prompt": "few"}')
    with refused(ParameterError, 512, field="calibration_prompts"):
        check_sources(str(target), (), BuildOptions(precision="int8", calibration_texts=prompts))


def test_a_cache_that_cannot_be_made_is_told_before_the_imports(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "specexport.exporter.build", None)
    (tmp_path / "file").touch()
    given = ["--target", str(target), "--output", str(tmp_path / "none.bundle"), "--cache", str(tmp_path / "file")]
    found = CliRunner().invoke(main, ["build", *given])
    says(found.stderr.splitlines()[-1], "--cache")
    assert found.exit_code == 2


@pytest.mark.parametrize("given", ["name=lookup", "name=ngram", "ngram"])
def test_a_lookup_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(ParameterError, given, "leave it out", field="draft"):
        parse_draft(given)
    (tmp_path / given.removeprefix("name=")).mkdir()
    assert parse_draft(given).source == given.removeprefix("name=")


def test_a_name_that_the_hub_lacks(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(source: str, **_: object) -> str:
        asked.append(source)
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    look_on_hub([str(target), "mtp"])
    assert not asked
    monkeypatch.setitem(sys.modules, "specexport.exporter.build", None)  # nothing slow is imported first
    found = CliRunner().invoke(main, ["build", "--target", "some/model:a.gguf", "--output", "none.bundle"])
    says(found.stderr.splitlines()[-1], "some/model", "cannot be reached")
    assert (asked, found.exit_code) == (["some/model"], 2)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "kind", "facts"),
    [
        (lambda folder: edit_json(folder / "config.json", medusa_num_heads=2), UnsupportedModelError, ("Medusa",)),
        (lambda folder: edit_json(folder / "config.json", vocab_size=100), CheckpointError, (100, VOCAB)),
        (
            lambda folder: edit_json(folder / "config.json", eagle_aux_hidden_state_layer_ids=[1, 3, 9]),
            CheckpointError,
            (9, "--draft-taps"),
        ),
        (
            lambda folder: edit_weights(folder / "model.safetensors", **{"fc.weight": torch.zeros(32, 192)}),
            CheckpointError,
            ("6 layers", "--draft-taps"),
        ),
        (
            lambda folder: edit_weights(folder / "model.safetensors", d2t=torch.full((64,), 300)),
            CheckpointError,
            ("d2t", 300),
        ),
        (pickled, CheckpointError, ("pytorch_model.bin", "model.safetensors")),
    ],
    ids=["Medusa", "vocabulary", "layer", "layers", "d2t", "pickled"],
)
def test_an_eagle3_draft_that_cannot_be(
    change: Callable[[Path], object],
    kind: type[SpecExportError],
    facts: tuple[object, ...],
    target: Path,
    tmp_path: Path,
) -> None:
    folder = save_original(tmp_path / "draft")
    change(folder)
    with refused(kind, folder, *facts, field={"draft", None}):
        check(target, folder)


@pytest.mark.parametrize("name", FORMATS)
def test_a_draft_as_the_target(name: str, target: Path, tmp_path: Path) -> None:
    draft = FORMATS[name](tmp_path / "draft")
    for other in (draft, target):
        with refused(CheckpointError, draft, "--draft", field="target"):
            check(draft, other)
    edit_json(draft / "config.json", medusa_num_heads=2)  # of a kind that --draft refuses: no advice to give it there
    check_sources(str(draft), (), BuildOptions())


def test_an_engine_that_there_is_not() -> None:
    with refused(EngineError, "onnxruntim", field="engine", code="unknown_engine"):
        BuildOptions(engines=("onnxruntim",))


def test_mtp_where_there_is_no_one_layer(target: Path, tmp_path: Path) -> None:
    with refused(CheckpointError, "mtp", target, field="draft"):
        check(target, "mtp")
    folder, _ = saved(FAMILIES["Qwen3.5"], tmp_path / "several")
    edit_weights(folder / "model.safetensors", **{"mtp.layers.1.eh_proj.weight": torch.zeros(32, 64)})
    with refused(CheckpointError, "2 MTP layers", field="draft"):
        check(folder, "mtp")


def test_options_that_do_not_go_with_the_draft(target: Path, tmp_path: Path) -> None:
    draft, plain = save_original(tmp_path / "draft"), save_target(tmp_path / "plain", num_hidden_layers=1)
    narrow, block = save_block_target(tmp_path / "narrow"), save_block(tmp_path / "block", "dflash")
    for engines in (("tensorrt-rtx",), ("onnxruntime", "tensorrt-rtx")):
        check(target, draft, engines=engines)
        with refused(ParameterError, block, "tensorrt-rtx", "dflash", field="draft"):
            check(narrow, block, engines=engines)
    check(narrow, block, draft_taps=(1, 2, 3))
    with refused(ParameterError, block, "--draft-feedback", field="draft_feedback"):
        check(narrow, block, draft_feedback="pre")
    with refused(ParameterError, "--tree-rows", 2, field="tree_rows"):
        check(target, draft, tree_rows=2)
    check(target, plain, tree_rows=2)
    both = [NamedDraft("draft", str(draft)), NamedDraft("plain", str(plain))]
    check_sources(str(target), both, BuildOptions(tree_rows=2))
    with refused(ParameterError, plain, "--draft-taps", field="draft_taps"):
        check(target, plain, draft_taps=(1, 2, 3))
    with refused(ParameterError, plain, "--draft-feedback", field="draft_feedback"):
        check(target, plain, draft_feedback="pre")
    with refused(ParameterError, draft, "--draft-vocabulary", field="draft_vocabulary"):
        check(target, draft, draft_vocabulary=8)
    for options in (dict[str, Any](draft_taps=(1, 2, 3)), dict(draft_feedback="post"), dict(draft_vocabulary=8)):
        with refused(ParameterError, "there is no --draft", field=tuple(options)):
            check_sources(str(target), (), BuildOptions(**options))


def test_options_for_one_of_several_drafts(target: Path, tmp_path: Path) -> None:
    plain = save_target(tmp_path / "plain", num_hidden_layers=1)
    drafts = [NamedDraft("plain", str(plain)), NamedDraft("one", str(save_original(tmp_path / "one")))]
    changes: tuple[dict[str, Any], ...] = (dict(draft_taps=(1, 2, 3)), dict(draft_feedback="post"))
    for options in changes:
        check_sources(str(target), drafts, BuildOptions(**options))
        check_sources(str(target), drafts[::-1], BuildOptions(**options))
    with refused(ParameterError, "1,2,9", field="draft_taps"):
        check_sources(str(target), drafts, BuildOptions(draft_taps=(1, 2, 9)))
    with refused(ParameterError, drafts[0].source, drafts[1].source, field="draft_vocabulary"):
        check_sources(str(target), drafts, BuildOptions(draft_vocabulary=8))
    drafts.append(NamedDraft("two", str(save_speculators(tmp_path / "two"))))
    for options in changes:
        (field,) = options
        with refused(ParameterError, "config.json", drafts[1].source, drafts[2].source, field=field) as caught:
            check_sources(str(target), drafts, BuildOptions(**options))
        assert str(plain) not in str(caught.value)
        check_sources(str(target), [*drafts[:2], NamedDraft("hub", "some/model")], BuildOptions(**options))
        check_sources(str(target), [drafts[0], NamedDraft("hub", "some/head")], BuildOptions(**options))


@pytest.mark.parametrize("width", [48, 64])
def test_a_draft_of_another_width(width: int, target: Path, tmp_path: Path) -> None:
    draft = save_original(tmp_path / "draft", tables() | tensors(target_width=width), target_hidden_size=width)
    with refused(CheckpointError, width, WIDTH, field="draft"):
        check(target, draft)
    edit_json(target / "config.json", hidden_size=None)  # a default, which is not known here
    check(target, draft)
