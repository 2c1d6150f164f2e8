"""benchmarks/synthetic_pair.py on a few narrow layers: the draft is the target's beginning, and agrees as asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from synthetic_pair import Found, Shape, make_pair, read_prompts
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.nightly

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
