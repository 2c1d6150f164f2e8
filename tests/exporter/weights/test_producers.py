"""A candidate that does not give exactly the inputs over s, or is read elsewhere too, is refused and undone."""

from __future__ import annotations

import pytest
import torch
from specexport.exporter.weights.collect_activations import observe
from specexport.exporter.weights.producers import Probe, apply, undo
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

TOKENS = torch.arange(12)[None]


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


def found(kind: str) -> list[str | None]:
    model = Block(kind).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    probe = Probe(model, TOKENS)
    producers = [probe.producer(group) for group in observe(model, [TOKENS]).groups]
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return [producer.path if producer else None for producer in producers]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", ["inner.norm", "inner.first"]),
        ("relu", ["inner.norm", "inner.first"]),
        ("gelu", ["inner.norm", None]),
        ("permuted", ["inner.norm", None]),
        ("elsewhere", [None, "inner.first"]),
    ],
)
def test_what_is_found(kind: str, expected: list[str | None]) -> None:
    assert found(kind) == expected


def test_scales_go_into_both_and_out_again() -> None:
    model = Block("relu").eval()
    before = [parameter.clone() for parameter in model.parameters()]
    group = observe(model, [TOKENS]).groups[1]
    producer = Probe(model, TOKENS).producer(group)
    assert producer is not None
    scales = torch.exp2(torch.arange(16) % 5 - 2.0)
    apply(group, producer, scales)
    assert torch.equal(model.inner.first.bias * scales, before[4])
    assert torch.equal(model.inner.second.weight / scales, before[5])
    undo(group, producer, scales)
    assert all(map(torch.equal, before, model.parameters()))
