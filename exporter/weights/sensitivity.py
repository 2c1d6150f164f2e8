"""How much rounding one layer alone changes a model's output distributions, in nats.

For small changes the KL divergence is half the quadratic form of the Fisher information: for a change e of a layer's
output, the mean of 1/2 (g . e)^2, where g is the gradient of a token's log probability and the token is drawn from the
model's own distribution (Amari 1998; for weights: Kunstner et al. 2019, arXiv 1905.12558, section 2). So one forward
and one backward pass over a text give the estimate for all layers, in any number of formats. Changes at different rows
of the text are assumed to be independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .fake_quant import rounded_activations
from .fidelity import evenly
from .layers import LinearLayer, hooked, linear_layers
from .recipe import Float32, Format, Values, WeightRecipe, restore
from .turning import Turn

# Tokens to read in total. With 270, another mix was chosen for SmolLM2-135M, 9 % further from the exact model.
TOKENS = 1024
SEED = 0
# The number of most likely tokens compared per row of the head, which have nearly all of its probability, and of rows.
TOP = 64
ROWS = 32


def divergences(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    candidates: Mapping[str, Mapping[Format, WeightRecipe]],
    turns: Mapping[str, Turn],
) -> dict[str, dict[Format, float]]:
    """Mean KL divergence in nats per token, by weight and format, if only that weight were rounded.

    token_batches: each [1, T] int64, of which about TOKENS tokens are read. The same arguments give the same estimate.
    Weights that no text reaches are missing. candidates: by the weight's name and format. turns: by the weight's name,
    how its inputs are turned in int8.
    """
    read, generator = evenly(token_batches, TOKENS), torch.Generator().manual_seed(SEED)
    sums: defaultdict[str, defaultdict[Format, float]] = defaultdict(lambda: defaultdict(float))
    # A weight is rounded once, however many texts are read, and kept in few bits to fit in memory.
    rounded: dict[tuple[str, Format], tuple[Values, Float32]] = {}

    def add(layer: LinearLayer, rows: Tensor, gradient: Tensor) -> None:
        """Add one text. rows: [R, K], the layer's inputs. gradient: [..., N], at its outputs."""
        weight = layer.matrix.float()
        exact = rows @ weight.T
        gradient = gradient.reshape(exact.shape).float()
        for form, recipe in candidates[layer.weight].items():
            turn = turns.get(layer.weight) if form == "int8" else None
            if (layer.weight, form) not in rounded:
                matrix = turn.apply(weight) if turn else weight
                rounded[layer.weight, form] = recipe.quantize(np.ascontiguousarray(matrix.numpy()))
            restored = torch.from_numpy(restore(*rounded[layer.weight, form]))
            inputs = turn.apply(rows) if turn else rows
            off = rounded_activations(inputs, recipe) @ restored.T - exact
            sums[layer.weight][form] += float((off * gradient).sum(1).square().sum(dtype=torch.float64))

    def hook(layer: LinearLayer) -> Any:
        def watch(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            rows = args[0].detach().reshape(-1, args[0].shape[-1])
            if output.requires_grad:
                output.register_hook(lambda gradient: add(layer, rows.float(), gradient))

        return watch

    layers = [layer for layer in linear_layers(model) if layer.weight in candidates]
    hooks = (layer.module.register_forward_hook(hook(layer)) for layer in layers)
    with _gradients_of_activations(model), hooked(hooks):
        for tokens in read:
            logits = model(input_ids=tokens, use_cache=False).logits[0]  # [T, vocab]
            logits.backward(_of_drawn_tokens(logits.detach().float(), generator).to(logits.dtype))
    count = sum(tokens.shape[1] for tokens in read)
    return {name: {form: total / 2 / count for form, total in of.items()} for name, of in sums.items()}


def _of_drawn_tokens(logits: Tensor, generator: torch.Generator) -> Tensor:
    """The gradient [T, vocab] of the log probability of a token drawn for each row of logits."""
    probs = logits.softmax(-1)
    drawn = torch.multinomial(probs, 1, generator=generator)
    return probs.neg_().scatter_add_(1, drawn, torch.ones_like(drawn, dtype=probs.dtype))


@contextmanager
def _gradients_of_activations(model: nn.Module) -> Iterator[None]:
    """Within the context, gradients reach back to the output of the token embeddings, and none are made for weights.

    What is saved for the backward pass is detached from the weights, which a model in half precision converts to fp32
    only during the forward pass.
    """
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    known: Any = model

    def begin(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output.detach().requires_grad_().clone()  # a clone, since a model may change it in place

    detached = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda saved: saved)
    try:
        for parameter in wanted:
            parameter.requires_grad_(False)
        with known.get_input_embeddings().register_forward_hook(begin), torch.enable_grad(), detached:
            yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_()


def lm_head_divergence(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """Mean KL divergence of softmax(rows @ matrix.T) from the same with a quantized matrix.

    rows: [R, K] fp32, inputs of the LM head. matrix: [V, K]. Only over each row's TOP most likely tokens, so that the
    whole matrix of a large vocabulary need not be quantized for it.
    """
    rows = rows[:: max(1, rows.shape[0] // ROWS)]
    exact, tokens = (rows @ matrix.float().T).topk(min(TOP, matrix.shape[0]))  # [R, TOP]
    used, places = torch.unique(tokens, return_inverse=True)
    restored = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix[used].float().numpy())))
    logits = torch.log_softmax((rows @ restored.T).gather(1, places), -1)
    exact = torch.log_softmax(exact, -1)
    return float((exact.exp() * (exact - logits)).sum(-1).mean())
