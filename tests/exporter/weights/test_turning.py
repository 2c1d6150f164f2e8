"""Inputs with outliers are spread in front of a layer, and the model's answers stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from specexport.exporter.weights import turning
from specexport.exporter.weights.collect_activations import InputGroup, observe, rewritable
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from specexport.exporter.weights.turning import turned, worthwhile_turns
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
INT8 = WeightRecipe("int8", limit=127)


def loud(make: Make) -> PreTrainedModel:
    """Few channels of the gated activations are open, others for each token, as in trained models."""
    model = make("llama", intermediate_size=512)
    numbers = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in model.model.layers:
            for linear, power in ((layer.mlp.gate_proj, 1), (layer.mlp.up_proj, 5)):
                linear.weight.copy_(torch.randn(512, 32, generator=numbers).pow(power))
            layer.mlp.down_proj.weight.copy_(torch.randn(32, 512, generator=numbers) / 512)
    return model


def logits(model: PreTrainedModel, batches: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(input_ids=batch).logits for batch in batches], 1)


def turn(model: PreTrainedModel, batches: list[Tensor]) -> dict[str, InputGroup]:
    """The changed groups, by their layer's path."""
    turns = worthwhile_turns(rewritable(model, observe(model, batches)))
    return {group.layers[0].path: turned(group, one) for group, one in turns.items()}


def test_answers_stay_and_rounding_harms_less(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turning, "WORTH", 0.5)  # of 512 channels there are fewer outliers than of 1536
    model = loud(make)
    down = [f"model.layers.{index}.mlp.down_proj" for index in range(2)]
    recipe = Recipe({f"{path}.weight": INT8 for path in down})
    exact = logits(model, batches)

    def off() -> float:
        with fake_quantized(model, recipe):
            return float((logits(model, batches) - exact).square().mean())

    before = off()
    groups = turn(model, batches)
    assert set(down) <= set(groups)
    assert not any("q_proj" in path or "gate" in path for path in groups)  # several layers read their input
    assert (logits(model, batches) - exact).abs().max() < 1e-5 * exact.std()
    assert off() < 0.5 * before
    # Whoever reads the layer's inputs sees what is multiplied.
    for seen in observe(model, batches):
        if (group := groups.get(seen.layers[0].path)) is not None:
            near = 1e-3 * seen.largest
            torch.testing.assert_close(group.rows, seen.rows, rtol=0, atol=near)
            assert abs(group.largest - seen.largest) <= near


def test_not_where_it_gains_little_or_no_block_divides(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loud(make)
    before = [parameter.clone() for parameter in model.parameters()]
    monkeypatch.setattr(turning, "WORTH", 0.001)
    assert turn(model, batches) == {}
    monkeypatch.setattr(turning, "WORTH", 1.0)
    monkeypatch.setattr(turning, "BLOCKS", (1024,))
    assert turn(model, batches) == {}
    assert all(map(torch.equal, before, model.parameters()))
