"""fp32 arithmetic over weights in half precision, one module's at a time."""

from __future__ import annotations

import pytest
import torch
from specexport.exporter.checkpoints.half_precision import fp32_arithmetic
from torch import Tensor, nn


class Tied(nn.Module):
    """An embedding, a layer with a buffer of its own, and a head that is the embedding again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.norm.register_buffer("scale", torch.rand(8))
        self.wide = 0

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.embed(tokens)) * self.norm.scale
        self.wide = sum(parameter.dtype == torch.float32 for parameter in self.parameters())
        return self.head(hidden)


@pytest.fixture
def model() -> Tied:
    torch.manual_seed(0)
    return Tied().bfloat16().requires_grad_(False)


def test_what_is_computed_is_not_rounded(model: Tied) -> None:
    tokens = torch.arange(11)[None]
    with fp32_arithmetic(model):
        found = model(tokens)
    assert found.dtype == torch.float32
    rounded = model(tokens)
    expected = model.float()(tokens)
    assert torch.equal(found, expected)
    assert (rounded.float() - expected).abs().max() > 1e-3


def test_no_module_keeps_its_weights_wide(model: Tied) -> None:
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    with fp32_arithmetic(model):
        model(torch.zeros(1, 2, dtype=torch.int64))
        assert model.wide == 0  # between its modules, none is
        assert {value.dtype for value in model.state_dict().values()} == {torch.bfloat16}
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before
