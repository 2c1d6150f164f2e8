"""Outliers move into the weights; not one bit of an answer moves with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from specexport.exporter.weights import smoothing
from specexport.exporter.weights.collect_activations import InputGroup, observe, rewritable
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from specexport.exporter.weights.smoothing import channel_scales, smooth
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

Make = Callable[..., PreTrainedModel]
INT8 = WeightRecipe("int8")
# The layers of the first block whose producers a family's arithmetic lets through.
SMOOTHED: dict[str, set[str]] = {
    "llama": {"q_proj", "o_proj", "gate_proj", "down_proj"},
    # Its norms multiply by 1 + w.
    "gemma": {"o_proj", "down_proj"},
    # GELU stands between c_fc and c_proj of the feed-forward part.
    "gpt2": {"attn.c_attn", "attn.c_proj", "c_fc"},
    # The last half of gate and up in one; of q, k and v in one, v has fewer channels.
    "phi3": {"qkv_proj", "gate_up_proj", "down_proj"},
    # LayerNorms with biases; ReLU lets powers of two through.
    "opt": {"q_proj", "out_proj", "fc1", "fc2"},
    # One norm in front of both parts, whose layers are one group.
    "cohere": {"q_proj", "o_proj", "down_proj"},
    # The norm in front of the experts feeds the router too, which is no linear layer.
    "mixtral": {"q_proj", "o_proj"},
}


def logits(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [model(input_ids=batch).logits for batch in batches]


def smoothed(model: nn.Module, batches: list[Tensor], own: WeightRecipe = INT8) -> dict[InputGroup, InputGroup]:
    return smooth(model, batches[0], dict.fromkeys(rewritable(model, observe(model, batches)), own))


@pytest.mark.parametrize("family", SMOOTHED)
def test_answers_stay_equal_bit_for_bit(
    make: Make, batches: list[Tensor], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing, "WORTH", 1e9)
    model = make(family)
    before = logits(model, batches)
    changed = smoothed(model, batches)
    assert all(map(torch.equal, before, logits(model, batches)))
    first = {group.layers[0].path for group in changed if ".0." in group.layers[0].path}
    assert len(first) == len(SMOOTHED[family])
    assert all(any(path.endswith(layer) for path in first) for layer in SMOOTHED[family])
    # What is known of the inputs moved with them.
    known = {group.layers[0].path: group for group in changed.values()}
    for seen in observe(model, batches):
        if (group := known.get(seen.layers[0].path)) is not None:
            assert torch.equal(group.rows, seen.rows)
            torch.testing.assert_close(group.mean_square, seen.mean_square)


@pytest.mark.parametrize("recipe", [INT8, WeightRecipe("int4", block=16)], ids=["int8", "int4"])
def test_the_quantized_model_is_nearer(make: Make, batches: list[Tensor], recipe: WeightRecipe) -> None:
    model = make("llama")
    exact = logits(model, batches)

    def off() -> float:
        names = [name for name, parameter in model.named_parameters() if "proj" in name]
        with fake_quantized(model, Recipe(dict.fromkeys(names, recipe))):
            pairs = zip(logits(model, batches), exact, strict=True)
            return sum(float((found - known).square().sum()) for found, known in pairs)

    before = off()
    smoothed(model, batches, recipe)
    assert off() < 0.95 * before


def test_scales_that_leave_the_range_are_taken_back(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("llama")
    before = [parameter.clone() for parameter in model.parameters()]
    monkeypatch.setattr(smoothing, "WORTH", 1e9)
    monkeypatch.setattr(smoothing, "channel_scales", lambda inputs, *_: torch.full_like(inputs, 2.0**127))
    monkeypatch.setattr(smoothing, "output_error", lambda *_: 1.0)
    assert smoothed(model, batches) == {}
    assert all(map(torch.equal, before, model.parameters()))


class Block(nn.Module):
    """kind: what stands between the first layer and the second."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.embedding = nn.Embedding(12, 8)
        self.inner = nn.Module()
        self.inner.norm = nn.LayerNorm(8)
        self.inner.first = nn.Linear(8, 16)
        self.inner.second = nn.Linear(16, 8)

    def forward(self, input_ids: Tensor, use_cache: bool) -> CausalLMOutput:
        x = self.inner.norm(self.embedding(input_ids))
        hidden = self.inner.first(x)
        if self.kind == "relu":
            hidden = torch.relu(hidden)
        elif self.kind == "gelu":
            hidden = nn.functional.gelu(hidden)
        elif self.kind == "permuted":
            hidden = hidden.flip(-1)
        logits = self.inner.second(hidden)
        return CausalLMOutput(logits=logits + x if self.kind == "elsewhere" else logits)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("relu", {"inner.first", "inner.second"}),
        ("gelu", {"inner.first"}),
        ("permuted", {"inner.first"}),
        ("elsewhere", {"inner.second"}),
    ],
)
def test_a_producer_that_is_not_exact_or_is_read_elsewhere_is_refused_and_undone(
    kind: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = torch.arange(12)[None]
    model = Block(kind).eval()
    model.requires_grad_(False)
    before = [parameter.clone() for parameter in model.parameters()]
    monkeypatch.setattr(smoothing, "WORTH", 0.0)
    groups = observe(model, [tokens])
    assert smooth(model, tokens, dict.fromkeys(groups, INT8)) == {}
    assert all(map(torch.equal, before, model.parameters()))
    monkeypatch.setattr(smoothing, "WORTH", 1e9)
    changed = smooth(model, tokens, dict.fromkeys(groups, INT8))
    assert {group.layers[0].path for group in changed} == expected
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_scales_are_powers_of_two_that_flatten() -> None:
    inputs, weights = torch.tensor([1.0, 1, 64, 0, 1]), torch.tensor([1.0, 1, 1, 1, 0])
    assert channel_scales(inputs, weights, 0.5).tolist() == [0.5, 0.5, 4, 1, 1]
    heavy = torch.tensor([1.0, 64, 1, 1, 1])  # the weights' own outliers are spared
    assert channel_scales(torch.ones(5), heavy, 0.5).tolist() == [2, 0.25, 2, 2, 2]
    assert channel_scales(torch.zeros(2), torch.ones(2), 0.5).tolist() == [1, 1]
