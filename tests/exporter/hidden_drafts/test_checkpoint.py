"""A draft as a checkpoint beside its target's: what it takes from it, its digest, and whose draft it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.bundle import WARNING
from specexport.errors import CheckpointError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.pair import check_draft
from specexport.exporter.hidden_drafts.checkpoint import HiddenDraftCheckpoint, find_draft
from specexport.exporter.hidden_drafts.fit import Said, is_same
from support.hidden_drafts import (
    TAPS,
    WIDTH,
    save_deepspec,
    save_original,
    save_speculators,
    save_target,
    tables,
    tensors,
)
from support.refusals import refused, says
from support.tiny import VOCAB, edit_json, edit_weights, shard

IDS = torch.arange(9)[None]
IDS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def target(tmp_path: Path) -> Checkpoint:
    return find_checkpoint(str(save_target(tmp_path / "target")))


def found(folder: Path, target: Checkpoint, **said: Any) -> HiddenDraftCheckpoint:
    draft = find_draft(str(folder), target, Said(**said))
    assert isinstance(draft, HiddenDraftCheckpoint)
    return draft


def test_what_the_pipeline_asks_for(target: Checkpoint, tmp_path: Path) -> None:
    draft = found(save_speculators(tmp_path / "draft"), target)
    assert draft.tokenizer is target.tokenizer
    assert draft.stop_token_ids == target.stop_token_ids
    assert draft.defaults == target.defaults
    assert (draft.kind, draft.taps, draft.vocab_size, draft.architecture) == ("eagle3", TAPS, VOCAB, "Eagle3Draft")
    assert draft.max_positions == target.max_positions
    model, notes = draft.load_noted("fp32")
    assert 4 * model.num_parameters() == draft.fp32_bytes
    own = sum(weight.numel() for weight in tensors().values())
    copied = VOCAB * WIDTH  # the target's embedding
    assert (draft.own_parameters(model), model.num_parameters()) == (own, own + copied)
    assert notes == ("the embedding is the target's: 0.0 M parameters more",)
    assert check_draft(target, draft, 0.5)[0] is None


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(precision: Any, target: Checkpoint, tmp_path: Path) -> None:
    draft = found(save_speculators(tmp_path / "draft", norm_output=True), target)
    model, exact = draft.load(precision), draft.load("fp32")
    assert {parameter.element_size() for parameter in model.parameters()} == {2}
    assert model.__dict__["_target"].dtype == model.dtype
    assert float((model(IDS).logits.float() - exact(IDS).logits).std()) < 0.1 * float(exact(IDS).logits.std())


def test_weights_in_half_precision_and_in_shards(target: Checkpoint, tmp_path: Path) -> None:
    whole = found(save_speculators(tmp_path / "whole"), target).load("fp32")
    shard(save_speculators(tmp_path / "parts"))
    assert torch.equal(found(tmp_path / "parts", target).load("fp32")(IDS).logits, whole(IDS).logits)
    narrow = {name: weight.half() for name, weight in tensors().items()}
    narrowed = found(save_speculators(tmp_path / "narrow", tables() | narrow), target).load("fp32")
    assert torch.equal(narrowed.fc.weight, narrow["fc.weight"].float())


def test_the_digest_depends_on_all_that_the_graphs_do(target: Checkpoint, tmp_path: Path) -> None:
    folder = save_speculators(tmp_path / "draft")
    first = found(folder, target).digest
    assert found(folder, target).digest == first
    others = {found(folder, target, taps=(1, 4, 5)).digest, found(folder, target, feedback="post").digest}
    another = find_checkpoint(str(save_target(tmp_path / "another", seed=1)))
    others.add(found(folder, another).digest)
    edit_json(folder / "config.json", norm_before_residual=True)
    others.add(found(folder, target).digest)
    assert len(others | {first}) == 5


@pytest.mark.parametrize(
    ("name", "noted"), [("other/model-8b", 1), ("tiny/target", 0), ("Copies/TARGET", 0), (None, 0)], ids=str
)
def test_a_folder_may_be_a_copy_of_the_target(name: str | None, noted: int, target: Checkpoint, tmp_path: Path) -> None:
    verifier = dict(verifier=dict(name_or_path=name, architectures=["LlamaForCausalLM"]))
    folder = save_speculators(tmp_path / "draft", speculators_config=verifier)
    assert len(found(folder, target).warnings) == noted


@pytest.mark.parametrize(
    ("target", "same"),
    [
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", True),
        ("smollm2-135m-instruct-IQ3_XXS.gguf", True),
        ("/models/SmolLM2-135M-Instruct", True),
        ("SmolLM2-135M-Instruct-2.gguf", False),
        ("SmolLM2-135M-Instruct.Q4_1", False),
        ("SmolLM2-135M.gguf", False),
    ],
)
def test_a_gguf_file_is_named_after_its_model(target: str, same: bool) -> None:
    assert is_same("HuggingFaceTB/SmolLM2-135M-Instruct", target) == same


@pytest.mark.parametrize("save", [save_deepspec, save_speculators])
def test_the_draft_of_another_model_of_the_hub(save: Any, target: Checkpoint, tmp_path: Path) -> None:
    folder = save(tmp_path / "draft")
    named = Checkpoint("some/other-model", target.folder)
    (note,) = found(folder, named).warnings
    says(note, "tiny/target", "some/other-model")
    assert not found(folder, Checkpoint("copies/Target", target.folder)).warnings


def test_the_draft_of_another_architecture(target: Checkpoint, tmp_path: Path) -> None:
    verifier = dict(verifier=dict(name_or_path="tiny/target", architectures=["Qwen3ForCausalLM"]))
    folder = save_speculators(tmp_path / "draft", speculators_config=verifier)
    (note,) = found(folder, target).warnings
    says(note, "Qwen3ForCausalLM", "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"layers.0.extra.weight": torch.ones(3)}, "layers.0.extra.weight"),
        ({"norm.weight": torch.ones(33)}, "norm.weight"),
        ({"norm.weight": torch.full((32,), torch.nan)}, "norm.weight"),
        ({"d2t": torch.full((64,), 300)}, "d2t"),
    ],
    ids=["no place", "shape", "no number", "d2t"],
)
def test_weights_that_are_not_the_drafts(
    change: dict[str, torch.Tensor], fact: str, target: Checkpoint, tmp_path: Path
) -> None:
    folder = save_speculators(tmp_path / "draft")
    edit_weights(folder / "model.safetensors", **change)
    field = None if fact == "norm.weight" and change[fact].isnan().any() else "draft"
    with refused(CheckpointError, folder, fact, field=field):
        found(folder, target).load("fp32")


@pytest.mark.parametrize(
    ("save", "layer", "changes", "said", "absent"),
    [
        (save_speculators, {}, {}, {}, ""),
        (save_deepspec, {}, {}, {}, ""),
        (save_original, {}, {}, {}, "norm_before_residual false, norm_output false"),
        (save_speculators, {}, dict(norm_output=None), {}, "norm_output false"),
        (save_speculators, {}, dict(norm_output=None), dict(feedback="post"), ""),
        (save_speculators, {}, dict(eagle_aux_hidden_state_layer_ids=None), {}, f"{IDS_KEY} 2,4,5"),
        (save_speculators, {}, dict(eagle_aux_hidden_state_layer_ids=None), dict(taps=(1, 4, 5)), ""),
        (save_speculators, dict(rope_theta=None), {}, {}, "rope_theta 10000 (the target has 5000)"),
        (save_speculators, dict(rope_theta=None, rope_parameters=dict(rope_theta=5000.0)), {}, {}, ""),
        (save_speculators, dict(hidden_act=None, rms_norm_eps=None), {}, {}, "hidden_act silu, rms_norm_eps 1e-06"),
    ],
)
def test_keys_that_the_config_lacks_are_noted(
    save: Any, layer: Any, changes: Any, said: Any, absent: str, target: Checkpoint, tmp_path: Path
) -> None:
    layers = {"layer": layer} if layer else {}
    edit_json(target.folder / "config.json", rope_parameters=dict(rope_type="default", rope_theta=5000.0))
    reads = find_checkpoint(str(target.folder))
    notes = found(save(tmp_path / "draft", **layers, **changes), reads, **said).load_noted("fp32")[1]
    assert [note.removeprefix(WARNING).split(": ", 1)[1] for note in notes if "config.json" in note] == [absent] * bool(
        absent
    )


def test_weights_that_are_missing(target: Checkpoint, tmp_path: Path) -> None:
    weights = tables() | tensors()
    del weights["layers.0.hidden_norm.weight"]
    with refused(CheckpointError, "hidden_norm.weight", field="draft"):
        found(save_speculators(tmp_path / "draft", weights), target)


def test_what_only_training_reads_is_left_out(target: Checkpoint, tmp_path: Path) -> None:
    folder = save_original(tmp_path / "draft")
    before = found(folder, target).load("fp32")(IDS).logits
    edit_weights(folder / "model.safetensors", **{"verifier_norm.weight": torch.ones(32)})
    assert torch.equal(found(folder, target).load("fp32")(IDS).logits, before)


def test_a_folder_called_mtp_is_a_checkpoint(
    target: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(target.folder, "mtp")
    assert type(find_draft("mtp", target)) is Checkpoint
