"""fp32 arithmetic over weights in half precision, one module's at a time."""

from __future__ import annotations

import pytest
import torch
from specexport.exporter.checkpoints.half_precision import fp32_arithmetic
from torch import Tensor, nn
from torch.nn import functional


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
        matrices = [parameter for parameter in self.parameters() if parameter.ndim > 1]
        self.wide = sum(matrix.dtype == torch.float32 for matrix in matrices)
        return self.head(hidden)


class Convolving(nn.Module):
    """Reads the weights of its parts itself, as the layers of hybrids do, and calls one of them too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 4, padding=3, groups=8), nn.LayerNorm(8)
        self.step = nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.norm(rows.to(self.norm.weight.dtype)).transpose(1, 2)
        weight = self.conv.weight
        return self.step.weight @ functional.conv1d(rows.to(weight.dtype), weight, self.conv.bias, padding=3, groups=8)


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


def test_what_a_module_reads_of_its_parts_rounds_nothing() -> None:
    torch.manual_seed(0)
    module = Convolving().bfloat16().requires_grad_(False)
    before, rows = {name: value.data_ptr() for name, value in module.state_dict().items()}, torch.randn(1, 9, 8)
    with fp32_arithmetic(module):
        found = module(rows)
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == before
    assert torch.equal(found, module.float()(rows))


def test_a_call_that_fails_leaves_the_weights_as_they_were(model: Tied) -> None:
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    with fp32_arithmetic(model):
        with pytest.raises(IndexError):
            model(torch.full((1, 2), 11))
        assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before


def test_no_module_keeps_its_matrices_wide(model: Tied) -> None:
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    with fp32_arithmetic(model):
        model(torch.zeros(1, 2, dtype=torch.int64))
        assert model.wide == 0  # between its modules, none is
        assert {value.dtype for value in model.state_dict().values()} == {torch.bfloat16}
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before
