"""benchmarks/synthetic_pair.py on a few narrow layers: the draft is the target's beginning, and agrees as asked for."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from synthetic_pair import Found, Shape, greedy, loops, make_pair, make_target, read_prompts

pytestmark = pytest.mark.slow

SHAPE = Shape(layers=4, hidden=64, heads=4, kv_heads=2, intermediate=128, outliers=8)
NEW_TOKENS = 16


def make(output: Path, wanted: float, seed: int = 0) -> Found:
    torch.set_num_threads(1)
    return make_pair(output, wanted, seed, SHAPE, count=8, new_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


@pytest.fixture(scope="module")
def close(folder: Path) -> Found:
    return make(folder / "close", 0.9)


def load(path: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)


@torch.no_grad()
def test_the_draft_is_the_target_cut_at_its_first_layers(folder: Path, close: Found) -> None:
    target, draft = load(folder / "close/target"), load(folder / "close/draft")
    prompts = read_prompts(3)
    assert not torch.equal(target(prompts).logits, draft(prompts).logits)
    target.model.layers = target.model.layers[: SHAPE.draft_layers]
    assert torch.equal(target(prompts).logits, draft(prompts).logits)
    assert (len(draft.model.layers), draft.config.tie_word_embeddings) == (2, True)
    assert close.parameters[0] - close.parameters[1] == 2 * sum(p.numel() for p in target.model.layers[0].parameters())


def test_more_agreement_is_more_agreement(folder: Path, close: Found) -> None:
    far = make(folder / "far", 0.4)
    assert close.agreement == pytest.approx(0.9, abs=0.12)
    assert far.agreement == pytest.approx(0.4, abs=0.2)
    assert far.factor > close.factor


def test_the_text_does_not_stand_still(folder: Path, close: Found) -> None:
    assert close.distinct > 0.4
    assert close.loops < 0.3
    target = load(folder / "close/target")
    assert not (greedy(target, read_prompts(4), NEW_TOKENS)[:, -NEW_TOKENS:] == 0).any()
    sizes = target.model.embed_tokens.weight.norm(dim=1)
    assert sizes[0] < 0.05 * sizes.median()  # so the end token's logit is about 0, wherever it stands


def test_a_loop_is_seen() -> None:
    varied, constant = torch.arange(40), torch.full((40,), 7)
    pairs, fives = (torch.arange(40) % period for period in (2, 5))
    assert loops(torch.stack([varied, constant, pairs, fives])) == 0.5


def test_a_seed_gives_the_same_weights_again_and_another_seed_others(folder: Path, close: Found) -> None:
    assert make(folder / "again", 0.9) == close
    first, again = (load_file(folder / name / "target/model.safetensors") for name in ("close", "again"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other, same = (
        make_target(SHAPE, len(first["model.embed_tokens.weight"]), seed).model.embed_tokens.weight for seed in (1, 0)
    )
    assert torch.equal(same.half(), first["model.embed_tokens.weight"])
    assert not torch.equal(same, other)


def test_some_channels_stand_out(folder: Path, close: Found) -> None:
    weights = load_file(folder / "close/target/model.safetensors")
    norm = weights["model.layers.1.post_attention_layernorm.weight"].float()
    assert (norm > 3 * norm.median()).sum() == 2
    tame = make_target(replace(SHAPE, outliers=2), 64, 0).model.layers[1].post_attention_layernorm.weight
    assert not (tame > 3 * tame.median()).any()
