"""Drafts of blocks: against what speculators computes, and their configs in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from block_steps import ANCHOR, computed
from specexport.errors import CheckpointError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.block import BlockDraft
from specexport.exporter.hidden_drafts.checkpoint import HiddenDraftCheckpoint, find_draft
from specexport.exporter.hidden_drafts.formats import Said
from support.block_drafts import FORMS, RECORDED, flat, save_block, save_block_target, tensors_of
from support.hidden_drafts import save
from support.refusals import refused

AUX, IDS = torch.from_numpy(RECORDED["aux"]), torch.from_numpy(RECORDED["ids"])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_block_target(tmp_path_factory.mktemp("target"))


def loaded(folder: Path, target: Path, said: Said | None = None) -> Any:
    draft = find_draft(str(folder), find_checkpoint(str(target)), said)
    assert isinstance(draft, HiddenDraftCheckpoint)
    model = draft.load("fp32")
    assert isinstance(model, BlockDraft)
    model.embed_tokens.weight.data = torch.from_numpy(RECORDED["embedding"])
    return model


@pytest.mark.parametrize("name", FORMS)
def test_a_block_is_that_of_speculators(name: str, target: Path, tmp_path: Path) -> None:
    place = FORMS[name][0]
    model = loaded(save_block(tmp_path, name), target)
    assert model.kind == name.split(",")[0]
    logits, confidence = computed(model, AUX, IDS)
    expected = torch.from_numpy(RECORDED[f"logits {place}"])
    assert float(expected.std()) > 0.5
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert (confidence is not None) == (f"confidence {place}" in RECORDED)
    if confidence is not None:
        said = torch.from_numpy(RECORDED[f"confidence {place}"])
        assert float(said.std()) > 0.05
        torch.testing.assert_close(confidence, said, atol=1e-5, rtol=1e-5)


def test_every_form_was_recorded() -> None:
    kinds = [name.split(",")[0] for name in FORMS]
    assert (kinds.count("dflash"), kinds.count("dspark")) == (3, 5)


@pytest.mark.filterwarnings("ignore")  # of an older transformers' names
def test_speculators_itself() -> None:
    pytest.importorskip("speculators", reason="it pins an older transformers: scripts/block_reference.py")
    from block_reference import run

    assert run() < 1e-5


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("dflash, windows", flat("dflash, windows", architectures=["DFlashDraftModel"])),
        ("dspark", flat("dspark", architectures=["Qwen3DSparkModel"])),
        ("dspark, gated", flat("dspark, gated", architectures=["DFlashDraftModel"])),
    ],
)
def test_other_formats_are_read_alike(name: str, config: dict[str, Any], target: Path, tmp_path: Path) -> None:
    """Except that z-lab's windows have no order within a block."""
    theirs = loaded(save_block(tmp_path / "one", name), target).form
    ours = loaded(save(tmp_path / "two", config, tensors_of(name)), target).form
    assert ours.causal_windows is False
    assert {**vars(ours), "causal_windows": theirs.causal_windows} == vars(theirs)


def test_keys_may_stand_inside(target: Path, tmp_path: Path) -> None:
    config = flat("dflash", architectures=["DFlashDraftModel"])
    config["dflash_config"] = {key: config.pop(key) for key in ("block_size", "mask_token_id", "target_layer_ids")}
    model = loaded(save(tmp_path, config, tensors_of("dflash")), target)
    assert (model.form.block_size, model.form.taps, model.form.slots) == (4, (2, 4, 5), 3)


def test_the_user_may_say_the_taps(target: Path, tmp_path: Path) -> None:
    folder = save_block(tmp_path, "dflash", aux_hidden_state_layer_ids=None)
    assert loaded(folder, target, Said((1, 3, 6))).taps == (1, 3, 6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(aux_hidden_state_layer_ids=None), ("aux_hidden_state_layer_ids", "--draft-taps")),
        (dict(aux_hidden_state_layer_ids=[2, 4, 9]), ("layer 9", "8")),
        (dict(aux_hidden_state_layer_ids=[2, 4]), ("3 layers", "2 are named")),
        (dict(mask_token_id=None), ("mask_token_id", "None")),
        (dict(mask_token_id=288), ("288",)),
        (dict(block_size=1), ("block_size", "1")),
        (dict(markov_head_type="rnn"), ("markov_head_type", "rnn")),
        (dict(projector="other"), ("projector", "other")),
    ],
)
def test_bad_configs(changes: dict[str, Any], says: tuple[str, ...], target: Path, tmp_path: Path) -> None:
    name = "dspark" if "markov_head_type" in changes else "dflash"
    with refused((CheckpointError, UnsupportedModelError), tmp_path, *says, field="draft"):
        find_draft(str(save_block(tmp_path, name, **changes)), find_checkpoint(str(target)))


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (dict(layer_types=["sliding_attention", "linear_attention"]), "layer_types"),
        (dict(layer_types=["sliding_attention", "full_attention"], sliding_window=None), "sliding_window"),
        (dict(vocab_size=300), "300"),
    ],
)
def test_bad_layers(layer: dict[str, Any], says: str, target: Path, tmp_path: Path) -> None:
    config = FORMS["dflash"][1]["config"]["transformer_layer_config"] | layer
    folder = save_block(tmp_path, "dflash", transformer_layer_config=config)
    with refused((CheckpointError, UnsupportedModelError), folder, says, field="draft"):
        find_draft(str(folder), find_checkpoint(str(target)))


def test_a_block_sees_no_row_after_its_anchor(target: Path, tmp_path: Path) -> None:
    model = loaded(save_block(tmp_path, "dspark"), target)
    with torch.no_grad():
        fused = model.fuse(AUX)
        apart = [model.blocks(fused[:, :end], IDS[0, end : end + 1], torch.tensor([end]))[0] for end in (3, ANCHOR)]
        together, _ = model.blocks(fused, IDS[0, [3, ANCHOR]], torch.tensor([3, ANCHOR]))
    torch.testing.assert_close(torch.cat(apart), together)
