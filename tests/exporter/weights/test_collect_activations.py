"""What the layers read, against a plain recording of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from specexport.exporter.weights import collect_activations as module
from specexport.exporter.weights.collect_activations import observe, rewritable
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]


def recorded(model: PreTrainedModel, path: str, batches: list[Tensor]) -> list[Tensor]:
    kept: list[Tensor] = []
    hook = model.get_submodule(path).register_forward_pre_hook(lambda _, args: kept.append(args[0][0].clone()))
    with torch.no_grad():
        for batch in batches:
            model(input_ids=batch)
    hook.remove()
    return kept


def test_layers_of_one_input_are_a_group(make: Make, batches: list[Tensor]) -> None:
    model = make("llama", tie_word_embeddings=True)
    found = observe(model, batches)
    layer = "model.layers.0."
    names = [tuple(layer.weight for layer in group.layers) for group in found]
    assert names[:4] == [
        tuple(f"{layer}self_attn.{part}_proj.weight" for part in "qkv"),
        (f"{layer}self_attn.o_proj.weight",),
        (f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight"),
        (f"{layer}mlp.down_proj.weight",),
    ]
    assert names[-1] == ("model.embed_tokens.weight",)  # the head's, by the name of its table
    assert len(names) == 9
    assert all(group.calls == 1 for group in found)
    assert rewritable(model, found) == found[:-1]
    model.model.layers[1].mlp.down_proj.weight = model.model.layers[0].mlp.down_proj.weight
    shared = observe(model, batches)
    assert rewritable(model, shared) == [group for group in shared[:-1] if "down_proj" not in group.layers[0].path]


def test_the_statistics(make: Make, batches: list[Tensor]) -> None:
    model = make("llama")
    group = observe(model, batches)[3]
    rows = torch.cat(recorded(model, "model.layers.0.mlp.down_proj", batches))
    assert group.largest == rows.abs().max()
    torch.testing.assert_close(group.mean_square, rows.square().mean(0))
    assert torch.equal(group.rows, rows)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_rows_are_bounded_and_evenly_spread(make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    passes = recorded(model, "model.layers.0.mlp.down_proj", batches)
    monkeypatch.setattr(module, "SAMPLED_ROWS", (8, 20))
    assert torch.equal(observe(model, batches)[3].rows, torch.cat(passes)[::5])
