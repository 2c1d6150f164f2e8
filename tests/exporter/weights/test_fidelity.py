from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from specexport.exporter.weights.fidelity import measure_fidelity, split
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from torch import nn


def batch(length: int) -> torch.Tensor:
    return torch.arange(length)[None]


def test_every_fourth_batch_is_judged_by_and_not_calibrated_on() -> None:
    batches = [batch(length) for length in range(10, 19)]
    used, held = split(batches)
    assert [len(one[0]) for one in held] == [13, 17]
    assert [len(one[0]) for one in used] == [10, 11, 12, 14, 15, 16, 18]


class Bigram(nn.Module):
    """The next token's logits are a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(8, 16)
        self.head = nn.Linear(16, 8, bias=False)
        self.requires_grad_(False)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.table(input_ids)))


def test_perplexity_and_divergence_on_what_follows() -> None:
    model, tokens = Bigram(), [torch.tensor([[1, 5, 2, 7]]), torch.tensor([[3, 3]])]
    recipe = Recipe({"head.weight": WeightRecipe("int4", block=16)})
    before = model.head.weight.clone()
    found = measure_fidelity(model, recipe, tokens, own_texts=True)
    assert torch.equal(model.head.weight, before)

    def log_probs(head: np.ndarray) -> np.ndarray:
        logits = model.table.weight.numpy().astype(np.float64) @ head.T
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    exact, ours = log_probs(before.numpy()), log_probs(recipe.weights["head.weight"].restore(before.numpy()))
    pairs = [(1, 5), (5, 2), (2, 7), (3, 3)]
    assert found.tokens == 4
    assert found.measured_on == "4 held-out tokens of the calibration prompts given"
    assert replace(found, own_texts=False).measured_on == "4 held-out tokens of the shipped texts"
    assert math.isclose(found.perplexity, np.exp(-np.mean([ours[pair] for pair in pairs])), rel_tol=1e-5)
    assert math.isclose(found.exact_perplexity, np.exp(-np.mean([exact[pair] for pair in pairs])), rel_tol=1e-5)
    apart = (np.exp(exact) * (exact - ours)).sum(-1)  # of the exact from the quantized, not the other way round
    wanted = (3 * apart[[1, 5, 2, 7]].mean() + apart[3]) / 4
    assert math.isclose(found.divergence, wanted, rel_tol=1e-4)
    assert found.agreement == np.mean([ours[token].argmax() == exact[token].argmax() for token, _ in pairs])
    assert math.isclose(found.loss, found.perplexity / found.exact_perplexity - 1)
