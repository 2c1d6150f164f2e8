"""Weights that are no part of the model are refused by name; what a text model does without is left out and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from specexport.cli import main
from specexport.errors import CheckpointError
from specexport.exporter.checkpoints.find import find_checkpoint
from support.refusals import refused
from support.tiny import LLAMA, edit_json, edit_weights, save_checkpoint, save_model

GPT2 = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64)


def weights_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def notes_of(folder: Path) -> tuple[str, ...]:
    return find_checkpoint(str(folder)).load_noted("fp32")[1]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (dict(attention_bias=True), dict(attention_bias=False)),
        (dict(mlp_bias=True), dict(mlp_bias=False)),
        ({}, dict(num_hidden_layers=1)),
        (dict(attention_bias=True), dict(attention_bias=False, num_hidden_layers=1)),
    ],
    ids=["biases", "biases of the MLP", "a layer", "both"],
)
def test_a_config_with_less_than_the_file(written: dict[str, Any], read: dict[str, Any], tmp_path: Path) -> None:
    folder = save_model(tmp_path, config=LLAMA | written)
    edit_json(folder / "config.json", **read)
    with refused(CheckpointError, "config.json"):
        notes_of(folder)


def test_an_output_layer_that_is_to_be_the_embeddings_and_is_not(tmp_path: Path) -> None:
    folder = save_model(tmp_path, config=LLAMA | dict(tie_word_embeddings=True))
    embeddings = load_file(weights_of(folder))["model.embed_tokens.weight"]
    edit_weights(weights_of(folder), **{"lm_head.weight": embeddings.clone()})
    assert notes_of(folder) == ()
    edit_weights(weights_of(folder), **{"lm_head.weight": embeddings + 0.01})
    with refused(CheckpointError, "tie_word_embeddings"):
        notes_of(folder)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["mtp.layers.0.mlp.up_proj.weight", "mtp.fc.weight"], ["mtp.*"]),
        (["model.mtp_block.0.norm.weight"], ["model.mtp_block.*"]),
        (["model.visual.blocks.0.norm.weight", "vision_tower.a.weight"], ["model.visual.*", "vision_tower.*"]),
        (["model.audio_tower.conv.bias"], ["model.audio_tower.*"]),
        (["model.vision.layers.0.mm.weight", "model.layers.2.mtp.a"], ["model.vision.*", "model.layers.2.mtp.*"]),
        (["multi_modal_projector.linear_1.weight"], ["multi_modal_projector.*"]),
        (["model.layers.2.eh_proj.weight", "model.layers.2.mlp.up_proj.weight"], ["model.layers.2.*"]),
    ],
)
def test_what_a_text_model_does_without(names: list[str], told: list[str], tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    edit_weights(weights_of(folder), **{name: torch.ones(4) for name in names})
    notes = notes_of(folder)
    assert [note.rpartition(", ")[2] for note in notes] == sorted(told)
    assert sum(int(note.split()[2]) for note in notes) == len(names)


def test_a_part_of_a_layer_is_never_left_out_for_its_name(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    edit_weights(weights_of(folder), **{"model.layers.0.mlp.image_proj.weight": torch.ones(4)})
    with refused(CheckpointError, "model.layers.0.mlp.image_proj.weight"):
        notes_of(folder)


def test_masks_of_old_checkpoints_and_biases_of_their_names(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "gpt2", config=GPT2)
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(2)}
    edit_weights(weights_of(folder), **masks, **{"h.0.attn.masked_bias": torch.tensor(-1e4)})
    assert notes_of(folder) == ("left out: 1 weight of causal masks",)  # transformers itself leaves out the others
    folder = save_model(tmp_path / "other")
    edit_weights(weights_of(folder), **{"model.layers.0.attention.bias": torch.ones(1, 1, 64, 64)})
    assert notes_of(folder) == ("left out: 1 weight of causal masks",)
    edit_weights(weights_of(folder), **{"model.layers.0.attention.bias": torch.ones(32)})
    with refused(CheckpointError, "model.layers.0.attention.bias"):
        notes_of(folder)


@pytest.mark.parametrize("scaled", [False, True])
def test_rotary_frequencies_are_those_of_the_config(scaled: bool, tmp_path: Path) -> None:
    rope = dict(rope_type="linear", factor=2.0) if scaled else dict(rope_type="default")
    folder = save_model(tmp_path, config=LLAMA | dict(rope_parameters=rope | dict(rope_theta=5e5)))
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(weights_of(folder), **{name: (5e5 ** (-torch.arange(4) / 4)).bfloat16()})
    notes_of(folder)
    others = {"visual.rotary_pos_emb.inv_freq": 1e4 ** (-torch.arange(8) / 8)}
    edit_weights(weights_of(folder), **others)
    assert notes_of(folder) == ("left out: 1 weight of parts that read no text, visual.*",)
    edit_weights(weights_of(folder), **{name: 1e4 ** (-torch.arange(4) / 4)})
    with refused(CheckpointError, name):
        notes_of(folder)


def test_tables_of_old_checkpoints_follow_from_the_config(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    edit_weights(weights_of(folder), **{"model.embeddings.position_ids": torch.arange(4)[None]})
    assert notes_of(folder) == ("left out: 1 weight of tables that follow from the config, *.position_ids",)


@pytest.mark.slow
def test_build_and_inspect_tell_what_was_left_out(tmp_path: Path) -> None:
    folder, bundle = save_checkpoint(tmp_path / "model"), str(tmp_path / "bundle")
    edit_weights(weights_of(folder), **{"mtp.fc.weight": torch.ones(4)})
    told = "left out: 1 weight of multi-token prediction, mtp.*"
    for _ in range(2):  # the second time from the cache
        made = ["build", "--target", str(folder), "--max-seq-len", "64", "-o", bundle, "--force"]
        done = CliRunner().invoke(main, [*made, "--cache", str(tmp_path / "cache")])
        assert done.exit_code == 0, done.output
        assert told in done.stderr
    assert told in CliRunner().invoke(main, ["inspect", bundle]).stdout
    assert json.loads(CliRunner().invoke(main, ["inspect", bundle, "--json"]).stdout)["target"]["notes"] == [told]
