"""The residual stream is rotated where that changes nothing but its channels, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specexport.exporter.weights import rotation
from specexport.exporter.weights.rotation import Rotation, find_stream, rotate
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from .conftest import LLAMA

Make = Callable[..., PreTrainedModel]
GRANITE = dict(attention_multiplier=0.3, embedding_multiplier=2.0, logits_scaling=1.5, residual_multiplier=0.7)


def logits(model: PreTrainedModel, batches: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(input_ids=batch).logits for batch in batches], 1)


def made(family: str, **changes: Any) -> PreTrainedModel:
    """As the fixture's, of families that it does not have."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **LLAMA | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", dict(attention_bias=True, mlp_bias=True)),
        ("qwen2", {}),
        ("qwen3", dict(head_dim=8)),
        ("mistral", dict(sliding_window=8)),
        ("phi3", {}),
        ("smollm3", {}),
        ("gemma", dict(head_dim=8)),
        ("granite", GRANITE),
    ],
    ids=["llama", "biases", "qwen2", "qwen3", "mistral", "phi3", "smollm3", "gemma-scaled-1+w", "granite-multipliers"],
)
def test_logits_stay(
    family: str, changes: dict[str, Any], tied: bool, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "MAX_STORED_TWICE", 1.0)
    model = made(family, tie_word_embeddings=tied, **changes)
    table = model.get_input_embeddings().weight.clone()
    before = logits(model, batches)
    note = rotate(model, batches[0])
    assert note is not None
    assert ("stored twice" in note) == tied
    off = (logits(model, batches) - before).abs().max() / before.std()
    assert off < 1e-4
    assert not torch.allclose(model.get_input_embeddings().weight, table, atol=0.1)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt_neox", {}),
        ("phi", {}),
        ("stablelm", {}),
        ("cohere", {}),
        ("olmo2", {}),
        ("gemma2", dict(head_dim=8)),
        ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
    ],
    ids=["layer-norm", "parallel", "stablelm", "cohere-no-bias", "olmo2-norms-behind", "gemma2-norms-both", "experts"],
)
def test_others_are_left_alone(family: str, changes: dict[str, Any], batches: list[Tensor]) -> None:
    model = made(family, **changes)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    assert rotate(model, batches[0]) is None
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_an_outlier_channel_is_gone(make: Make, batches: list[Tensor]) -> None:
    model = make("llama")  # channel 5 of its norms is twelve times the others

    def peak() -> float:
        """Of what the first queries read: the largest magnitude of a row over its root mean square."""
        seen: list[Tensor] = []
        query = model.model.layers[0].self_attn.q_proj
        hook = query.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        logits(model, batches)
        hook.remove()
        rows = torch.cat(seen, 1)[0]
        return float((rows.abs().amax(1) / rows.square().mean(1).sqrt()).mean())

    before = peak()
    assert rotate(model, batches[0]) is not None
    assert peak() < 0.75 * before


def test_a_reader_that_is_no_linear_layer_is_seen(make: Make, batches: list[Tensor]) -> None:
    """The trial with hooks refuses what the search for the stream does not know."""
    model = make("llama")
    block = model.model.layers[1]
    block.register_forward_hook(lambda module, args, output: output + output.abs() * 0.1)
    assert find_stream(model, batches[0]) is not None
    before = [parameter.clone() for parameter in model.parameters()]
    assert rotate(model, batches[0]) is None
    assert all(map(torch.equal, before, model.parameters()))


def test_layers_that_share_a_weight_are_left_alone(make: Make, batches: list[Tensor]) -> None:
    model = make("llama")
    model.model.layers[1].mlp.down_proj.weight = model.model.layers[0].mlp.down_proj.weight
    assert rotate(model, batches[0]) is None


@pytest.mark.parametrize("width", [1, 2, 7, 32, 96, 576, 896, 2048])
def test_orthogonal_and_spreading(width: int) -> None:
    rotation = Rotation(width)
    matrix = rotation.apply(torch.eye(width))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(width), atol=1e-5, rtol=0)
    odd = width // math.gcd(width, 1 << 30)
    most = math.sqrt((2 if odd > 1 else 1) / width)
    assert float(matrix.abs().max()) <= most * 1.00001
    torch.testing.assert_close(rotation.back(matrix), torch.eye(width), atol=1e-5, rtol=0)


def test_the_same_each_time_and_no_symmetric_matrix() -> None:
    rows = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Rotation(96).apply(rows), Rotation(96).apply(rows))
    # Without signs, a constant row would be gathered in one channel.
    assert float(Rotation(64).apply(torch.ones(64)).abs().max()) < 4
