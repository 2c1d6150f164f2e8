"""EAGLE-3 drafts in the formats of their publishers: each computes what its keys and tensors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.bundle import LAST
from specexport.errors import CheckpointError, OutputError, ParameterError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts import checkpoint
from specexport.exporter.hidden_drafts.base import tapped
from specexport.exporter.hidden_drafts.checkpoint import HiddenDraftCheckpoint, find_draft
from specexport.exporter.hidden_drafts.eagle3 import Eagle3Draft
from specexport.exporter.hidden_drafts.fit import Said
from specexport.exporter.hidden_drafts.folder import refuse_as_target
from support.hidden_drafts import (
    FORMATS,
    KEPT,
    TAPS,
    TARGET_LAYERS,
    computed,
    fused_by,
    save_deepspec,
    save_modelopt,
    save_original,
    save_speculators,
    save_target,
    tables,
    tensors,
)
from support.refusals import refused
from support.tiny import VOCAB
from torch import Tensor

IDS = torch.randint(0, VOCAB, (12,), generator=torch.Generator().manual_seed(2))
IDS_KEY = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def found(folder: Path, target: Path, **said: Any) -> HiddenDraftCheckpoint:
    draft = find_draft(str(folder), find_checkpoint(str(target)), Said(**said))
    assert isinstance(draft, HiddenDraftCheckpoint)
    return draft


def loaded(folder: Path, target: Path, **said: Any) -> Eagle3Draft:
    model = found(folder, target, **said).load("fp32")
    assert isinstance(model, Eagle3Draft)
    return model


def agree(model: Eagle3Draft, weights: dict[str, Tensor], taps: tuple[int, ...] = TAPS, **how: Any) -> None:
    """With the plain computation over the target's hidden states of the tokens before."""
    reads = model.__dict__["_target"]
    before = torch.cat([torch.zeros(1, dtype=torch.int64), IDS[:-1]])[None]
    states = reads(before, output_hidden_states=True).hidden_states
    embedding = weights.get("embed_tokens.weight", reads.get_input_embeddings().weight)
    head = {"lm_head.weight": reads.get_output_embeddings().weight}
    fused = fused_by(weights, [states[tap][0] for tap in taps])
    logits, hidden = computed(head | weights, embedding, IDS, fused, **how)
    output = model(IDS[None])
    torch.testing.assert_close(output.logits[0], logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.feedback[0], hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("format", FORMATS)
def test_each_format(format: str, target: Path, tmp_path: Path) -> None:
    draft = found(FORMATS[format](tmp_path), target)
    assert draft.published.format == format
    model = draft.load("fp32")
    if format == "deepspec":
        weights = tensors(5, kept=VOCAB, norms_of_heads=True, embedding=True)
        assert draft.taps == (1, 2, 4, 5, 7)
        assert model.target_ids is None
    else:
        weights = tensors()
        assert draft.taps == TAPS
        assert model.target_ids.tolist() == list(range(1, 4 * KEPT, 4))
    agree(model, weights, draft.taps)


@pytest.mark.parametrize("save", [save_original, save_modelopt, save_speculators])
@pytest.mark.parametrize("flag", FLAGS)
def test_flags(save: Any, flag: str, target: Path, tmp_path: Path) -> None:
    weights = tensors(flags=(flag,))
    with_flag = loaded(save(tmp_path / "with", tables() | weights, **{flag: True}), target)
    agree(with_flag, weights, residual=flag == "norm_before_residual")
    without = loaded(save(tmp_path / "without", tables() | tensors()), target)
    assert float((with_flag(IDS[None]).logits - without(IDS[None]).logits).std()) > 0.1


@pytest.mark.parametrize("flag", FLAGS[1:])
def test_norms_that_the_config_does_not_name(flag: str, target: Path, tmp_path: Path) -> None:
    folder = save_speculators(tmp_path / "more", tables() | tensors(flags=(flag,)))
    with refused(CheckpointError, folder, "norm", field="draft"):
        found(folder, target)
    folder = save_speculators(tmp_path / "fewer", **{flag: True})
    with refused(CheckpointError, folder, "norm", field="draft"):
        found(folder, target)


def test_what_goes_back(target: Path, tmp_path: Path) -> None:
    plain = loaded(save_speculators(tmp_path / "pre"), target)(IDS[None])
    model = loaded(save_speculators(tmp_path / "post", norm_output=True), target)
    normed = model(IDS[None])
    assert torch.equal(plain.logits, normed.logits)
    torch.testing.assert_close(model.norm(plain.feedback), normed.feedback)
    assert torch.equal(model.lm_head(normed.feedback), normed.logits)


def measures(monkeypatch: pytest.MonkeyPatch, *best: Any) -> list[list[Any]]:
    """Acceptance is 0.3 with a form of these taps and feedback, else 0.2. Gives the forms of each measurement."""
    measured: list[list[Any]] = []

    def acceptance(model: Any, texts: list[Tensor], forms: tuple[Any, ...]) -> list[Tensor]:
        assert 500 < sum(text.shape[1] for text in texts) <= 1024
        measured.append([(form.taps, form.feedback) for form in forms])
        return [torch.full((2, 9), 0.3 if pair in best else 0.2) for pair in measured[-1]]

    monkeypatch.setattr(checkpoint, "acceptance", acceptance)
    return measured


@pytest.mark.parametrize("save", [save_original, save_modelopt])
@pytest.mark.parametrize("feedback", ["pre", "post"])
def test_an_original_head_whose_norm_output_could_mean_both(
    save: Any, feedback: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path, norm_output=True)
    measured = measures(monkeypatch, (TAPS, feedback))
    draft = found(folder, target)
    assert draft.load("fp32").form.feedback == draft.form.feedback == feedback
    assert measured == [[(TAPS, "post"), (TAPS, "pre")]]
    assert "30.0%, 30.0%" in draft.warnings[-1]
    assert "20.0%, 20.0%" in draft.warnings[-1]
    assert found(folder, target, feedback="post").form.feedback == "post"
    assert found(folder, target, feedback="pre").form.feedback == "pre"
    assert found(save(tmp_path, norm_output=False), target).form.feedback == "pre"
    assert len(measured) == 1


def test_the_rotary_embeddings_of_angelslim(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name: Any = dict(architectures=["Eagle3LlamaForCausalLM"])
    right = found(save_original(tmp_path / "right", **name, rope_theta=10000), target).load("fp32")
    monkeypatch.setattr(
        checkpoint,
        "acceptance",
        lambda model, texts, forms: [torch.full((2, 9), (one.theta or 1) / 1e5) for one in forms],
    )
    draft = found(save_original(tmp_path / "named", **name), target)
    model = draft.load("fp32")
    assert torch.equal(model(IDS[None]).logits, right(IDS[None]).logits)
    assert model.config.rope_parameters["rope_theta"] == 10000
    assert "rope_theta 10000" in draft.warnings[-1]
    other = found(save_original(tmp_path / "other"), target)
    assert not other.warnings
    assert not torch.allclose(other.load("fp32")(IDS[None]).logits, right(IDS[None]).logits, atol=1e-3)


@pytest.mark.parametrize(
    ("save", "changes", "several"),
    [
        (save_original, dict(eagle_aux_hidden_state_layer_ids=[1, 3, 4]), [(1, 3, 4), (2, 4, 5)]),
        (save_modelopt, dict(eagle_config={IDS_KEY: [2, 4, 5]}), [(3, 5, 6), (2, 4, 5)]),
        (save_modelopt, dict(eagle_aux_hidden_state_layer_ids=[1, 4, 6]), [(1, 4, 6), (2, 4, 5)]),
    ],
    ids=["defaults of SGLang", "defaults of vLLM", "in two places"],
)
def test_layer_ids_that_could_mean_both(
    save: Any,
    changes: dict[str, Any],
    several: list[tuple[int, ...]],
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = save(tmp_path, **changes)
    for best in several:
        measured = measures(monkeypatch, (best, "pre"))
        assert found(folder, target).taps == best
        assert measured == [[(taps, "pre") for taps in several]]
    measured = measures(monkeypatch)
    with refused(CheckpointError, folder, "--draft-taps", "20.0%", field="draft"):
        _ = found(folder, target).taps
    assert found(folder, target, taps=(2, 3, 5)).taps == (2, 3, 5)
    assert len(measured) == 1
    monkeypatch.setattr("specexport.exporter.free_memory.available", lambda: 1 << 20)
    with refused(OutputError, "--draft-taps", code="out_of_memory"):  # before the target is loaded
        _ = found(folder, target).taps
    assert len(measured) == 1


def test_ids_in_two_places_that_agree(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measures(monkeypatch) == []
    assert found(save_modelopt(tmp_path, eagle_aux_hidden_state_layer_ids=[2, 4, 5]), target).taps == TAPS


def test_the_digest_is_of_the_form_that_was_taken(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_original(tmp_path, norm_output=True)
    digests = {found(folder, target, feedback=feedback).digest for feedback in ("pre", "post")}
    measures(monkeypatch, (TAPS, "pre"))
    assert found(folder, target).digest in digests
    assert len(digests) == 2


def test_several_layers_of_which_the_first_reads_the_embedding(target: Path, tmp_path: Path) -> None:
    weights = tensors(layers=2)
    agree(loaded(save_speculators(tmp_path, tables() | weights, layer=dict(num_hidden_layers=2)), target), weights)


def test_several_layers_that_all_read_the_embedding(target: Path, tmp_path: Path) -> None:
    weights = tensors(5, layers=2, joining=2, kept=VOCAB, norms_of_heads=True)
    folder = save_deepspec(tmp_path, weights, num_hidden_layers=2, layer_types=["full_attention"] * 2)
    agree(loaded(folder, target), weights, (1, 2, 4, 5, 7), joining=2)


def test_nemos_names_and_a_number_of_layers_that_is_the_targets(target: Path, tmp_path: Path) -> None:
    weights = tensors()
    named = {name if name.startswith("lm_head") else f"model.{name}": it for name, it in weights.items()} | tables()
    changes: dict[str, Any] = dict(num_hidden_layers=TARGET_LAYERS, partial_rotary_factor=1.0)
    folder = save_modelopt(tmp_path, named, architectures=["LlamaEagle3DraftModel"], **changes)
    agree(loaded(folder, target), weights)
    with refused(CheckpointError, "--draft", field="target"):
        refuse_as_target(str(folder), folder)


def test_a_head_that_lacks_a_layer(target: Path, tmp_path: Path) -> None:
    folder = save_speculators(tmp_path, tables() | tensors(), layer=dict(num_hidden_layers=2))
    with refused(CheckpointError, "lacks", field="draft"):
        loaded(folder, target)


def test_biases_are_where_tensors_are(target: Path, tmp_path: Path) -> None:
    weights = tensors(bias=True)
    agree(loaded(save_speculators(tmp_path, tables() | weights, layer=dict(attention_bias=True)), target), weights)


def test_norms_of_queries_and_keys(target: Path, tmp_path: Path) -> None:
    weights = tensors(norms_of_heads=True)
    folder = save_speculators(tmp_path, tables() | weights, layer=dict(model_type="qwen3"))
    agree(loaded(folder, target), weights)


def test_an_embedding_of_its_own_and_one_of_the_target(target: Path, tmp_path: Path) -> None:
    own = tensors(embedding=True)
    agree(loaded(save_speculators(tmp_path / "own", tables() | own), target), own)
    shared = found(save_speculators(tmp_path / "shared"), target)
    assert len(shared.load_noted("fp32")[1]) == 1
    assert shared.fp32_bytes == found(tmp_path / "own", target).fp32_bytes


def test_the_output_embedding_of_the_target(target: Path, tmp_path: Path) -> None:
    weights = tensors()
    del weights["lm_head.weight"]
    cut = loaded(save_speculators(tmp_path / "cut", tables() | weights), target)
    assert cut.lm_head.weight.shape == (KEPT, 32)
    assert torch.equal(cut.lm_head.weight, cut.__dict__["_target"].lm_head.weight[cut.target_ids])
    whole = loaded(save_speculators(tmp_path / "whole", weights, draft_vocab_size=VOCAB), target)
    agree(whole, weights)


def test_a_draft_narrower_than_its_target(tmp_path: Path) -> None:
    wide = save_target(tmp_path / "wide", hidden_size=48)
    weights = tensors(target_width=48, embedding=True, flags=("fc_norm",))
    folder = save_speculators(tmp_path / "draft", tables() | weights, fc_norm=True, target_hidden_size=48)
    agree(loaded(folder, wide), weights)
    del weights["embed_tokens.weight"]
    folder = save_speculators(tmp_path / "draft", tables() | weights, fc_norm=True, target_hidden_size=48)
    with refused(CheckpointError, "embed_tokens.weight", field="draft"):
        found(folder, wide)


def test_other_rotary_embeddings(target: Path, tmp_path: Path) -> None:
    plain = loaded(save_original(tmp_path / "plain"), target)(IDS[None]).logits
    scaling = dict(type="linear", factor=4.0)
    scaled = loaded(save_original(tmp_path / "scaled", rope_scaling=scaling), target)(IDS[None]).logits
    assert float((scaled - plain).std()) > 0.01
    parts = dict(type="mrope", mrope_section=[2, 1, 1])
    assert torch.equal(loaded(save_original(tmp_path / "parts", rope_scaling=parts), target)(IDS[None]).logits, plain)
    within = dict(rope_type="default", rope_theta=5000.0)
    for number, parameters in enumerate((within, dict(full_attention=within, sliding_attention={}))):
        folder = save_speculators(tmp_path / str(number), layer=dict(rope_parameters=parameters, rope_theta=None))
        assert torch.equal(loaded(folder, target)(IDS[None]).logits, plain)


@pytest.mark.parametrize(
    "scaling",
    [
        dict(rope_type="dynamic", factor=2.0),
        dict(rope_type="longrope"),
        dict(rope_type="default", partial_rotary_factor=0.5),
    ],
    ids=str,
)
def test_rotary_embeddings_that_are_refused(scaling: dict[str, Any], target: Path, tmp_path: Path) -> None:
    with refused(UnsupportedModelError, "rotary", field="draft"):
        found(save_original(tmp_path, rope_scaling=scaling), target)


@pytest.mark.parametrize(
    ("save", "changes", "taps"),
    [
        (save_original, dict(eagle_aux_hidden_state_layer_ids=None), (2, 4, 5)),
        (save_modelopt, dict(eagle_config={}), (2, 4, 5)),
        (save_speculators, dict(eagle_aux_hidden_state_layer_ids=[1, 3, 4]), (1, 3, 4)),
        (save_original, dict(eagle_aux_hidden_state_layer_ids=[0, 3, 7]), (0, 3, 7)),
        (save_modelopt, dict(eagle_config=dict(eagle_aux_hidden_state_layer_ids=[0, 3, 6])), (1, 4, 7)),
    ],
)
def test_layer_ids(save: Any, changes: dict[str, Any], taps: tuple[int, ...], target: Path, tmp_path: Path) -> None:
    assert found(save(tmp_path, **changes), target).taps == taps


@pytest.mark.parametrize(
    ("save", "changes"),
    [
        (save_modelopt, dict(eagle_aux_hidden_state_layer_ids=[2, 4])),
        (save_modelopt, dict(eagle_config=dict(eagle_aux_hidden_state_layer_ids=[1, 3, 7]))),
        (save_speculators, dict(eagle_aux_hidden_state_layer_ids=[1, 3, 8])),
        (save_original, dict(eagle_aux_hidden_state_layer_ids=[1, 3, 9])),
        (save_deepspec, dict(target_layer_ids=[0, 1, 2, 3, 8])),
        (save_deepspec, dict(target_layer_ids=None)),
        (save_speculators, dict(eagle_aux_hidden_state_layer_ids=[2, 4])),
        (save_speculators, dict(eagle_aux_hidden_state_layer_ids="2,4,5")),
    ],
    ids=["other counts", "gives the last", "the last", "beyond", "beyond it", "none", "two", "text"],
)
def test_layer_ids_that_say_too_little(save: Any, changes: dict[str, Any], target: Path, tmp_path: Path) -> None:
    folder = save(tmp_path, **changes)
    with refused(CheckpointError, folder, field="draft") as caught:
        found(folder, target)
    said = (1, 2, 4, 5, 7) if save is save_deepspec else TAPS
    if "--draft-taps" in str(caught.value):
        assert found(folder, target, taps=said).taps == said
    else:
        assert changes["eagle_aux_hidden_state_layer_ids"] == "2,4,5"


def test_the_last_hidden_states_have_two_numbers(target: Path, tmp_path: Path) -> None:
    folder = save_speculators(tmp_path)
    for last in (TARGET_LAYERS, LAST):
        model = loaded(folder, target, taps=(2, 4, last))
        assert model.taps == (2, 4, LAST)
        agree(model, tensors(), (2, 4, LAST))
    with refused(ParameterError, "2,4,9", TARGET_LAYERS, "--draft-taps", field="draft_taps"):
        found(folder, target, taps=(2, 4, 9))
    with refused(CheckpointError, "--draft-taps", field="draft"):
        found(folder, target, taps=(2, 4))


def test_other_layers_give_other_logits(target: Path, tmp_path: Path) -> None:
    folder = save_speculators(tmp_path)
    right, wrong = (loaded(folder, target, taps=taps)(IDS[None]).logits for taps in (TAPS, (3, 5, 6)))
    assert float((right - wrong).std()) > 0.1


@pytest.mark.parametrize(
    ("save", "changes", "key"),
    [
        (save_original, dict(use_gate=True), "use_gate"),
        (save_original, dict(target_layer_ids=[1, 2, 3]), "target_layer_ids"),
        (save_deepspec, dict(norm_output=True), "norm_output"),
        (save_deepspec, dict(fc_norm=True), "fc_norm"),
        (save_speculators, dict(eagle_config=dict(use_aux_hidden_state=True)), "eagle_config"),
        (save_speculators, dict(layer=dict(logit_scale=2.0)), "logit_scale"),
        (save_modelopt, dict(eagle_config=dict(scale=2.0)), "scale"),
        (save_modelopt, dict(eagle_config=dict(use_aux_hidden_state=False)), "use_aux_hidden_state"),
        (save_modelopt, dict(eagle_config=dict(use_mtp_layernorm=True)), "use_mtp_layernorm"),
        (save_modelopt, dict(eagle_config=dict(parallel_draft_step=4)), "parallel_draft_step"),
        (save_original, dict(mask_token_id=7), "mask_token_id"),
        (save_modelopt, dict(quantization_config=dict(quant_method="modelopt")), "choose the draft in one of them"),
        (save_deepspec, dict(layer_types=["sliding_attention"], sliding_window=4), "sliding_attention"),
        (save_deepspec, dict(use_sliding_window=True), "use_sliding_window"),
        (save_speculators, dict(layer=dict(layer_types=["linear_attention"])), "linear_attention"),
        (save_speculators, dict(layer=dict(layer_types=["full_attention"] * 2)), "layer_types"),
    ],
)
def test_keys_that_are_not_read(save: Any, changes: dict[str, Any], key: str, target: Path, tmp_path: Path) -> None:
    with refused(UnsupportedModelError, tmp_path, key, field="draft"):
        found(save(tmp_path, **changes), target)


def test_keys_that_change_nothing(target: Path, tmp_path: Path) -> None:
    changes = dict(use_gate=False, logit_scale=None, temperature=0.7, id2label={"0": "a"}, sliding_window=512)
    changes |= dict(tie_word_embeddings=True, image_token_id=7, use_qk_norm=True)
    assert found(save_original(tmp_path, **changes), target).taps == TAPS


@pytest.mark.parametrize(
    ("save", "changes", "facts"),
    [
        (save_original, dict(vocab_size=512), (512, VOCAB)),
        (save_original, dict(draft_vocab_size=32), (32, KEPT)),
        (save_original, dict(hidden_size=None), ("hidden_size",)),
        (save_original, dict(hidden_size=64), (64, "norm.weight of 32", "export or download both again")),
        (save_original, dict(intermediate_size=40), ("mlp",)),
        (save_original, dict(hidden_act="x"), ("config.json", "x")),
        (save_original, dict(rope_theta="x"), ("config.json",)),
        (save_original, dict(rope_scaling="linear"), ("config.json", "linear")),
        (save_deepspec, dict(num_target_layers=36), (36, TARGET_LAYERS)),
        (save_speculators, dict(transformer_layer_config=None), ("transformer_layer_config",)),
        (save_speculators, dict(layer=dict(layer_types=["sliding_attention"])), ("sliding_window",)),
        (save_speculators, dict(layer=dict(use_sliding_window=True, sliding_window=4)), ("layer_types",)),
    ],
)
def test_configs_of_another_draft(
    save: Any, changes: dict[str, Any], facts: tuple[Any, ...], target: Path, tmp_path: Path
) -> None:
    with refused(CheckpointError, tmp_path, *facts, field="draft"):
        found(save(tmp_path, **changes), target)


def test_a_target_of_another_width(tmp_path: Path) -> None:
    wide = save_target(tmp_path / "wide", hidden_size=40)
    with refused(CheckpointError, "width 32", 40, field="draft"):
        found(save_speculators(tmp_path / "draft"), wide)


def test_taps_are_side_by_side_in_their_order(target: Path, tmp_path: Path) -> None:
    model = loaded(save_speculators(tmp_path, eagle_aux_hidden_state_layer_ids=[5, 2, 4]), target)
    reads = model.__dict__["_target"]
    states = reads(IDS[None], output_hidden_states=True).hidden_states
    assert torch.equal(tapped(reads, IDS[None], model.taps), torch.cat([states[5], states[2], states[4]], -1))
