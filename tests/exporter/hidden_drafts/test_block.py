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
from support.tiny import save_model
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

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
    theirs = loaded(save_block(tmp_path / "one", name), target).form
    assert loaded(save(tmp_path / "two", config, tensors_of(name)), target).form == theirs


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({}, (3, 0), (True, False)),
        (dict(is_causal=False), (3, 0), (False, False)),
        (dict(dflash_config=dict(causal=True)), (3, 0), (True, True)),
        (dict(dflash_config=dict(causal=False)), (3, 0), (False, False)),
        (dict(use_swa=True), (3, 0), (True, False)),
        (dict(use_swa=True, swa_window_size=5, layer_types=["full_attention"] * 2), (5, 5), (True, True)),
        (dict(use_swa=False, layer_types=["full_attention"] * 2), (0, 0), (False, False)),
    ],
    ids=str,
)
def test_which_slots_see_later_ones(
    changes: dict[str, Any], windows: tuple[int, ...], causal: tuple[bool, ...], target: Path, tmp_path: Path
) -> None:
    name = "dflash, windows"
    config = flat(name, architectures=["DFlashDraftModel"], **changes)
    form = loaded(save(tmp_path, config, tensors_of(name)), target).form
    assert (form.windows, form.causal) == (windows, causal)


@pytest.mark.parametrize("ordered", [False, True])
def test_slots_in_order_do_not_depend_on_how_many_follow(ordered: bool, target: Path, tmp_path: Path) -> None:
    blocks = [
        computed(loaded(save_block(tmp_path, "dflash", is_causal=ordered, block_size=size), target), AUX, IDS)[0][:2]
        for size in (3, 6)
    ]
    assert torch.allclose(*blocks, atol=1e-5) is ordered


def test_the_embedding_and_the_logits_of_gemma(tmp_path: Path) -> None:
    sizes = dict(vocab_size=288, hidden_size=16, intermediate_size=32, num_hidden_layers=8, num_attention_heads=2)
    save_model(tmp_path / "target", "gemma3_text", config=sizes | dict(num_key_value_heads=1, head_dim=8))
    target = find_checkpoint(str(tmp_path / "target"))
    weights = {name: it for name, it in tensors_of("dflash").items() if name != "embed_tokens.weight"}
    base = flat("dflash", architectures=["DFlashDraftModel"])
    plain, capped = (
        find_draft(str(save(tmp_path / "draft", base | more, weights)), target).load("fp32")
        for more in ({}, dict(final_logit_softcapping=0.5))
    )
    tokens = torch.arange(9)
    theirs: Any = plain.__dict__["_target"].get_input_embeddings()
    assert float(theirs.embed_scale) == 4
    torch.testing.assert_close(plain.get_input_embeddings()(tokens), theirs(tokens))
    logits, expected = computed(capped, AUX, IDS)[0], computed(plain, AUX, IDS)[0]
    torch.testing.assert_close(logits, 0.5 * torch.tanh(expected / 0.5))
    assert float(expected.max()) > 1


def test_a_sink_takes_its_share(target: Path, tmp_path: Path) -> None:
    weights, config = tensors_of("dflash"), flat("dflash", architectures=["DFlashDraftModel"], attention_sink_bias=True)

    def logits(sink: float) -> Tensor:
        more = {f"layers.{index}.self_attn.attention_sink_bias": torch.full((4,), sink) for index in range(2)}
        return computed(loaded(save(tmp_path, config, weights | more), target), AUX, IDS)[0]

    without = computed(loaded(save(tmp_path / "without", config, weights), target), AUX, IDS)[0]
    nothing = weights | {name: torch.zeros_like(it) for name, it in weights.items() if "o_proj" in name}
    alone = computed(loaded(save(tmp_path / "alone", config, nothing), target), AUX, IDS)[0]
    torch.testing.assert_close(logits(-100.0), without)
    torch.testing.assert_close(logits(100.0), alone)
    assert not torch.allclose(logits(0.0), without, atol=1e-2)


def turned_neighbours(rows: Tensor, positions: Tensor, theta: float) -> Tensor:
    """rows `[heads, T, D]`, of which 2i and 2i + 1 are turned against each other."""
    angles = positions[:, None] * theta ** (-torch.arange(0, rows.shape[-1], 2) / rows.shape[-1])
    pairs = torch.view_as_complex(rows.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(pairs).flatten(-2)


def test_neighbours_turned_against_each_other(target: Path, tmp_path: Path) -> None:
    """As LFM2.5's drafts: scores of queries and keys are those of weights as they are stored."""
    weights, name = tensors_of("dflash"), "layers.0.self_attn."
    config = flat("dflash", architectures=["Lfm2DSparkDraftModel"], rope_is_neox_style=False, runtime_block_size=2)
    config["dflash_config"] = dict(mask_token_id=config.pop("mask_token_id"), num_target_layers=8)
    model = loaded(save(tmp_path, config, weights), target)
    layer, positions = model.layers[0].self_attn, torch.arange(4.0) + 5
    rows = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))

    def stored(half: str) -> Tensor:
        heads = (rows @ weights[f"{name}{half}_proj.weight"].T).view(4, -1, layer.head_dim).transpose(0, 1)
        normed = torch.nn.functional.rms_norm(heads, heads.shape[-1:], weights[f"{name}{half}_norm.weight"], 1e-6)
        return turned_neighbours(normed, positions, model.config.rope_parameters["rope_theta"])

    def ours(half: str) -> Tensor:
        heads = getattr(layer, f"{half}_proj")(rows).view(1, 4, -1, layer.head_dim)
        return apply_rotary_pos_emb(
            *[getattr(layer, f"{half}_norm")(heads).transpose(1, 2)] * 2, *model.angles(rows, positions.long())
        )[0][0]

    groups = layer.num_key_value_groups
    expected = stored("q") @ stored("k").repeat_interleave(groups, 0).transpose(1, 2)
    found = ours("q") @ ours("k").repeat_interleave(groups, 0).transpose(1, 2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.layers[0].context["k_proj"].weight, layer.k_proj.weight)
    config["rope_is_neox_style"] = True
    other = loaded(save(tmp_path, config, weights), target)
    assert not torch.allclose(computed(other, AUX, IDS)[0], computed(model, AUX, IDS)[0], atol=1e-2)


def test_the_names_of_modelopt(target: Path, tmp_path: Path) -> None:
    name = "dspark, gated"
    weights = tensors_of(name)
    theirs = {
        key.replace("markov_head.", "").replace("confidence_head.proj", "confidence_proj"): it
        for key, it in weights.items()
    }
    more: Any = dict(architectures=["DFlashDraftModel"], use_confidence_head=True, shift_label=True)
    assert loaded(save(tmp_path, flat(name, **more | dict(shift_label=False)), theirs), target).form.slots == 3
    model = loaded(save(tmp_path, flat(name, **more), theirs), target)
    assert theirs.keys() != weights.keys()
    assert (model.kind, model.form.gated, model.form.from_anchor) == ("dspark", True, True)
    torch.testing.assert_close(
        computed(model, AUX, IDS)[0], torch.from_numpy(RECORDED[f"logits {FORMS[name][0]}"]), atol=1e-5, rtol=1e-5
    )


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
        (dict(final_logit_softcapping=0), ("final_logit_softcapping", "0")),
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
