"""MTP layers of tiny random targets of every family, against the formula and against transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from specexport.errors import CheckpointError
from specexport.exporter.checkpoints.config import keeps_states
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.mtp import Mtp, mtp_checkpoint
from support.mtp_layers import (
    DEEPSEEK,
    EXPERTS,
    FAMILIES,
    LINEAR,
    PLAIN,
    QWEN,
    QWEN_EXPERTS,
    ROUTED,
    VOCAB,
    WIDTH,
    Family,
    saved,
)
from support.tiny import edit_json, edit_weights, make_tokenizer, save_model
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

TOL = 1e-5


def rows(target: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Tokens `[1, 13]`, and what the target's head reads at the first 11 of them."""
    tokens = torch.randint(2, VOCAB, (1, 13), generator=torch.Generator().manual_seed(2))
    seen = target(tokens[:, :-2], output_hidden_states=True)
    hidden: Tensor = seen.hidden_states[-1]
    assert torch.equal(target.lm_head(hidden), seen.logits)
    return tokens, hidden


def two_steps(draft: Mtp, tokens: Tensor, hidden: Tensor) -> tuple[Any, Any]:
    """All rows that have hidden states, and one more that reads what the last of them gave back."""
    kept = DynamicCache(config=draft.config)
    one = draft(tokens[:, 1:-1], hidden=hidden, past_key_values=kept)
    return one, draft(tokens[:, -1:], hidden=one.feedback[:, -1:], past_key_values=kept)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_steps_are_those_of_the_formula(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder, block = saved(family, tmp_path / "target")
    checkpoint = find_checkpoint(str(folder))
    target = checkpoint.load("fp32")
    tensors = load_file(folder / "model.safetensors")
    # The target once more, with the block's weights in the layers that it is like.
    other = save_model(tmp_path / "other", family.model_type, config=family.config)
    edit_weights(other / "model.safetensors", **block)
    like = AutoModelForCausalLM.from_pretrained(other).eval().get_decoder()

    def norm(values: Tensor, name: str) -> Tensor:
        eps = getattr(target.config, "rms_norm_eps", None) or target.config.layer_norm_epsilon
        scaled = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
        return scaled * (family.one_plus + tensors[f"{name}.weight"])

    def formula(hidden: Tensor, tokens: Tensor) -> Tensor:
        enorm, hnorm, projection, last = family.parts
        halves = [norm(target.get_input_embeddings()(tokens), enorm), norm(hidden, hnorm)]
        values = torch.cat(halves[::-1] if family.hidden_first else halves, -1) @ tensors[f"{projection}.weight"].T
        places = torch.arange(values.shape[1])[None]
        rotary = getattr(like, "rotary_emb", None)
        options = {} if rotary is None else {"position_embeddings": rotary(values, places)}
        mask = torch.full((values.shape[1], values.shape[1]), -torch.inf).triu(1)[None, None]
        for index in family.like:
            values = like.layers[index](values, attention_mask=mask, position_ids=places, **options)
        return norm(values, last)

    with torch.no_grad():
        tokens, hidden = rows(target)
        first = formula(hidden, tokens[:, 1:-1])
        second = formula(torch.cat([hidden, first[:, -1:]], 1), tokens[:, 1:])[:, -1:]
        draft = mtp_checkpoint(checkpoint).load("fp32")
        mine, then = two_steps(draft, tokens, hidden)
    for output, expected in ((mine, first), (then, second)):
        assert (output.feedback - expected).abs().max() <= TOL
        assert (output.logits - target.lm_head(expected)).abs().max() <= TOL
        assert expected.abs().max() > 0.5


# transformers takes the target's last layer for an example, and of GLM reads what comes after layer 46 or 92 alone.
LAST_ATTENDS = dict(layer_types=["linear_attention", "full_attention"])
READ = {
    "Qwen3.5": replace(FAMILIES["Qwen3.5"], config=PLAIN | LINEAR | LAST_ATTENDS, like=(1,)),
    "Qwen3-Next": replace(FAMILIES["Qwen3-Next"], config=PLAIN | LINEAR | QWEN_EXPERTS | LAST_ATTENDS, like=(1,)),
    # Its block is a layer with a window, and an angle of its own, whatever the last of the model is.
    "Mellum": Family(
        "mellum",
        PLAIN
        | EXPERTS
        | dict(num_experts=4, num_hidden_layers=2, sliding_window=4, num_mtp_layers=1)
        | dict(layer_types=["sliding_attention", "full_attention"]),
        (0,),
        "mtp.layers.",
        QWEN,
    ),
    "GLM-4.5": replace(
        FAMILIES["GLM-4.5"],
        config=PLAIN | ROUTED | dict(num_hidden_layers=46),
        like=(45,),
        parts=tuple(name.replace("3", "46") for name in DEEPSEEK),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_two_steps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, _ = saved(READ[name], tmp_path)
    checkpoint = find_checkpoint(str(folder))
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    theirs.config.num_mtp_layers = 1
    if getattr(theirs.config, "layer_types", None) and not hasattr(theirs.config, "mtp_layer_types"):
        theirs.config.mtp_layer_types = ["full_attention"]
    layer, kept = MtpModel.from_pretrained(theirs).eval(), MtpCache(config=theirs.config.get_mtp_config())
    with torch.no_grad():
        tokens, hidden = rows(checkpoint.load("fp32"))
        places = torch.arange(1, tokens.shape[1])[None]  # theirs begin at 1
        first = layer.forward_layer(0, hidden, places[:, :-1], kept, input_ids=tokens[:, 1:-1])
        second = layer.forward_layer(0, first[:, -1:], places[:, -1:], kept, input_ids=tokens[:, -1:])
        mine = two_steps(mtp_checkpoint(checkpoint).load("fp32"), tokens, hidden)
    for output, expected in zip(mine, (first, second), strict=True):
        assert (output.feedback - expected).abs().max() <= TOL
        assert (output.logits - layer.shared_head(expected)).abs().max() <= TOL


def test_by_itself_it_reads_the_target_one_token_back(tmp_path: Path) -> None:
    checkpoint = find_checkpoint(str(saved(FAMILIES["GLM-4.5"], tmp_path)[0]))
    draft, tokens = mtp_checkpoint(checkpoint).load("fp32"), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before = checkpoint.load("fp32")(torch.tensor([[0, 5, 6, 7]]), output_hidden_states=True).hidden_states[-1]
        itself, given = draft(tokens, logits_to_keep=2).logits, draft(tokens, hidden=before).logits
    assert itself.shape == (1, 2, VOCAB)
    assert (itself - given[:, -2:]).abs().max() <= TOL


@pytest.mark.parametrize("tied", [False, True])
def test_it_has_copies_of_the_targets_embedding_and_head(tied: bool, tmp_path: Path) -> None:
    family = FAMILIES["Qwen3.5"]
    folder, _ = saved(replace(family, config=family.config | dict(tie_word_embeddings=tied)), tmp_path)
    draft = mtp_checkpoint(find_checkpoint(str(folder)))
    model, notes = draft.load_noted("bf16")
    assert len(notes) == 2 - tied  # of what it shares
    target: PreTrainedModel = model.__dict__["_target"]
    assert model.embed_tokens.weight is not target.get_input_embeddings().weight
    assert torch.equal(model.lm_head.weight, target.lm_head.weight)
    assert (model.lm_head.weight is model.embed_tokens.weight) == tied
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert draft.fp32_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())


def test_what_a_build_asks_of_it(tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES["Qwen3.5"], tmp_path)
    make_tokenizer().save_pretrained(folder)
    target = find_checkpoint(str(folder))
    draft = mtp_checkpoint(target)
    cut = replace(mtp_checkpoint(target), kept=(1, 5, 9))
    assert (draft.source, draft.folder, draft.weights) == (f"{folder} mtp", folder, target.weights)
    assert draft.tokenizer is target.tokenizer
    assert (draft.architecture, draft.vocab_size, draft.max_positions) == ("Qwen3_5ForCausalLM", VOCAB, 64)
    assert (draft.stop_token_ids, draft.taps, draft.warnings) == (target.stop_token_ids, (-1,), ())
    assert not keeps_states(draft.config)
    assert len({target.digest, draft.digest, cut.digest}) == 3
    assert draft.kept_tokens is None
    assert list(cut.kept_tokens) == [1, 5, 9]
    model = cut.load("fp32")
    copied = model.embed_tokens.weight.numel() + model.lm_head.weight.numel()
    assert cut.own_parameters(model) == model.num_parameters() - copied
    assert cut.fp32_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        tokens, hidden = rows(target.load("fp32"))
        whole = draft.load("fp32")(tokens[:, 1:-1], hidden=hidden).logits
        assert (model(tokens[:, 1:-1], hidden=hidden).logits - whole[..., [1, 5, 9]]).abs().max() <= TOL


def test_towers_of_other_inputs_are_no_layer_of_it(tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES["GLM-4.5"], tmp_path)
    edit_weights(folder / "model.safetensors", **{"model.visual.layers.7.attn.weight": torch.zeros(4, 4)})
    assert not any("visual" in name for name in mtp_checkpoint(find_checkpoint(str(folder))).stored.block.values())


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def without(start: str) -> Change:
    return lambda weights: {name: value for name, value in weights.items() if not name.startswith(start)}


def again(start: str, then: str) -> Change:
    """All that begins with `start` once more, beginning with `then`."""
    return lambda weights: (
        weights
        | {name.replace(start, then): value.clone() for name, value in weights.items() if name.startswith(start)}
    )


def put(name: str, *shape: int) -> Change:
    return lambda weights: weights | {name: torch.zeros(shape)}


WRONG: dict[str, tuple[str, Change, str]] = {
    "none, mtp": ("Qwen3.5", without("mtp."), "has no MTP layer (no mtp.* or model.layers.2.* weights); give a draft"),
    "none, after": ("GLM-4.5", without("model.layers.3."), "has no MTP layer (no mtp.* or model.layers.3.* weights)"),
    "several, mtp": ("Qwen3.5", again("mtp.layers.0.", "mtp.layers.1."), "has 2 MTP layers, each with a cache"),
    "several, after": ("GLM-4.5", again("model.layers.3.", "model.layers.4."), "has 2 MTP layers, each with a cache"),
    "several of two": ("Nemotron-H", again("mtp.layers.", "mtp.layers.1"), "has 2 MTP layers, each with a cache"),
    "no norm": ("Qwen3.5", without("mtp.norm."), "has none of shared_head.norm.weight, final_layernorm.weight, norm"),
    "no hnorm": ("GLM-4.5", without("model.layers.3.hnorm"), "has none of hnorm.weight, pre_fc_norm_hidden.weight"),
    "no block": ("Qwen3.5", without("mtp.layers.0."), "lacks layers.0.input_layernorm.weight"),
    "one missing": (
        "MiMo",
        without("model.mtp_layers.0.self_attn.k_proj.bias"),
        "lacks layers.0.self_attn.k_proj.bias",
    ),
    "an expert less": ("GLM-4.5", without("model.layers.3.mlp.experts.3."), "down_proj is [3, 32, 16]; expected [4,"),
    "one more": ("Qwen3.5", put("mtp.layers.0.gate.weight", 4, 4), "has mtp.layers.0.gate.weight, which its block has"),
    "own embedding": ("Qwen3.5", put("mtp.embed_tokens.weight", VOCAB, WIDTH), "has mtp.embed_tokens.weight, which no"),
    "projection": ("Qwen3.5", put("mtp.fc.weight", WIDTH, WIDTH), "mtp.fc.weight of"),
    "block": (
        "Qwen3.5",
        put("mtp.layers.0.self_attn.k_proj.weight", 8, WIDTH),
        "k_proj.weight is [8, 32]; expected [16",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    family, change, reason = WRONG[name]
    folder, _ = saved(FAMILIES[family], tmp_path)
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})
    with pytest.raises(CheckpointError) as refused:
        mtp_checkpoint(find_checkpoint(str(folder)))
    assert refused.value.field == "draft"
    assert str(refused.value).startswith("--draft mtp: ")
    assert reason in str(refused.value)
    assert str(folder) in str(refused.value)


def test_a_block_that_keeps_states_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES["Nemotron-H"], tmp_path)
    edit_json(folder / "config.json", mtp_layers_block_type=["linear_attention", "moe"])
    with pytest.raises(CheckpointError, match=r"keeps states \(linear_attention, moe\); expected attention alone"):
        mtp_checkpoint(find_checkpoint(str(folder)))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES["Qwen3.5"], tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="is damaged"):
        mtp_checkpoint(find_checkpoint(str(folder)))


def test_beside_a_tower_for_images_it_is_the_same(tmp_path: Path) -> None:
    """As Qwen3.5 is published: the text model's config and weights are a part of the checkpoint."""
    folder, _ = saved(FAMILIES["Qwen3.5"], tmp_path / "text")
    alone = find_checkpoint(str(folder))
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=WIDTH)
    text = AutoConfig.from_pretrained(folder).to_dict()
    whole = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision))
    whole.save_pretrained(tmp_path / "whole")
    weights = load_file(folder / "model.safetensors")
    names = {name: name.replace("model.", "model.language_model.", 1) for name in weights}
    ours = {names[name] if name.startswith("model.") else name: value for name, value in weights.items()}
    edit_weights(tmp_path / "whole" / "model.safetensors", **ours)
    with torch.no_grad():
        tokens, hidden = rows(alone.load("fp32"))
        one, other = (
            mtp_checkpoint(checkpoint).load("fp32")(tokens[:, 1:-1], hidden=hidden).logits
            for checkpoint in (alone, find_checkpoint(str(tmp_path / "whole")))
        )
    assert torch.equal(one, other)
