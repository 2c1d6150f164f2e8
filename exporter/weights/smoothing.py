"""Moves outliers from activations into weights, where the model stays the same.

SmoothQuant (Xiao et al. 2022, arXiv 2211.10438, section 4) and AWQ (Lin et al. 2023, arXiv 2306.00978, section 3.2)
divide each input channel j of a linear layer by s_j and multiply the weight's column by it. What gives the inputs, a
norm or a preceding linear layer, is divided instead, so nothing is computed at run time.

This needs no knowledge of architectures: scales are powers of two, so that only exponents change, and a candidate is
accepted only if no bit of the logits does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .collect_activations import InputGroup
from .fake_quant import output_error, sampled_outputs
from .layers import LinearLayer, NormReaders, linear_layers, logits_of
from .recipe import WeightRecipe
from .turning import relative_rows

# Exponents of the scales, as the papers' alpha.
STRENGTHS = (0.3, 0.45, 0.6, 0.75)
# Largest power of two, up or down from the group's mean.
LARGEST_EXPONENT = 6
# A migration must reduce the error to this share or less, since it is chosen on a few rows.
WORTH = 0.98
# Tokens on which candidates are tried.
PROBED_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Producer:
    """The parameters that scale a group's inputs: channels [start, start + count) of the first axis of `views`.

    spread[j]: the channel that produces input j.
    """

    views: tuple[Tensor, ...]
    start: int
    count: int
    spread: Tensor

    def scale(self, group: InputGroup, scales: Tensor) -> None:
        """Divide the producer's outputs by `scales` [count] and multiply the group's columns by them, in place."""
        for view in self.views:
            part = view.narrow(0, self.start, self.count)
            part /= scales.to(part.dtype).reshape(-1, *[1] * (part.ndim - 1))
        for layer in group.layers:
            matrix = layer.matrix
            matrix *= scales[self.spread].to(matrix.dtype)

    def by_channel(self, values: Tensor) -> Tensor:
        """From [K] to [count]: for each channel, the largest value of the inputs that it produces."""
        return torch.zeros(self.count).scatter_reduce(0, self.spread, values, "amax")


def smooth(
    model: nn.Module, tokens: Tensor, recipes: Mapping[InputGroup, WeightRecipe]
) -> dict[InputGroup, InputGroup]:
    """Scale the weights of `model` in place where that lowers the error of a group's quantized outputs.

    tokens: [1, T], of which a few are used. recipes: how each group of weights that may be changed (`rewritable`) will
    be quantized, with activations rounded by rows or not at all. Returns the changed groups.
    """
    trial = _Trial(model, tokens[:, :PROBED_TOKENS])
    changed: dict[InputGroup, InputGroup] = {}
    for group, recipe in recipes.items():
        producer = trial.producer(group)
        scales = None if producer is None else _scales(group, producer, recipe)
        if producer is not None and scales is not None and trial.accepts(group, producer, scales):
            by_input = scales[producer.spread]
            rows, squares = group.rows / by_input, group.mean_square / by_input.square()
            changed[group] = replace(group, rows=rows, mean_square=squares, largest=float(rows.abs().max()))
    return changed


class _Trial:
    def __init__(self, model: nn.Module, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.layers = linear_layers(model)
        self.modules = dict(model.named_modules())
        self.norms = {
            layer.path: norm for norm, layers in NormReaders(model, tokens).readers.items() for layer in layers
        }
        self.exact = logits_of(model, tokens)

    def accepts(self, group: InputGroup, producer: Producer, scales: Tensor) -> bool:
        """Scale, unless that changes a bit of the logits."""
        tensors = (*producer.views, *(layer.matrix for layer in group.layers))
        before = [tensor.clone() for tensor in tensors]
        producer.scale(group, scales)
        if torch.equal(logits_of(self.model, self.tokens), self.exact):
            return True
        for tensor, kept in zip(tensors, before, strict=True):
            tensor.copy_(kept)
        return False

    def producer(self, group: InputGroup) -> Producer | None:
        """The first candidate that scales the group's inputs and nothing else, or None."""
        for producer in self.candidates(group):
            pattern = torch.exp2((torch.arange(producer.count) * 5 % 3 - 1).float())
            if self.accepts(group, producer, pattern):
                producer.scale(group, 1 / pattern)
                return producer
        return None

    def candidates(self, group: InputGroup) -> Iterator[Producer]:
        first = group.layers[0]
        whole = torch.arange(group.inputs)
        if (norm := self.norms.get(first.path)) is not None:
            vectors = tuple(parameter.data for parameter in norm.parameters(recurse=False))
            if all(len(vector) == group.inputs for vector in vectors):
                yield Producer(vectors, 0, group.inputs, whole)
        parent = first.path.rpartition(".")[0]
        earlier = self.layers[: [layer.path for layer in self.layers].index(first.path)]
        for layer in reversed(earlier):
            if layer.path.rpartition(".")[0] == parent:
                yield from _of_linear(layer, group.inputs, self.modules[parent])


def _of_linear(layer: LinearLayer, inputs: int, parent: nn.Module) -> Iterator[Producer]:
    """Candidates of a layer whose outputs, or some of them, are the inputs, repeated by head for grouped queries."""
    bias = getattr(layer.module, "bias", None)
    views = (layer.matrix,) if bias is None else (layer.matrix, bias.data)
    outputs = layer.matrix.shape[0]
    whole = torch.arange(inputs)
    if outputs % inputs == 0:
        for start in range(outputs - inputs, -1, -inputs):
            yield Producer(views, start, inputs, whole)
    head = getattr(parent, "head_dim", None)
    if outputs < inputs and isinstance(head, int) and inputs % outputs == 0 and outputs % head == 0:
        repeats = inputs // outputs
        yield Producer(views, 0, outputs, whole // (head * repeats) * head + whole % head)


def _scales(group: InputGroup, producer: Producer, recipe: WeightRecipe) -> Tensor | None:
    """The scales [count] of the strength with the least error; None if none is worth it.

    They follow the channels' root mean squares on one half of the sampled rows, and are judged on the other.
    """
    matrices = [sampled_outputs(layer) for layer in group.layers]
    rows = relative_rows(group.rows, torch.cat(matrices))
    middle = len(rows) // 2
    chosen, judged = (rows[:middle], rows[middle:]) if middle else (rows, rows)
    inputs = producer.by_channel(chosen.square().mean(0).sqrt())
    weights = producer.by_channel(torch.stack([layer.matrix.abs().amax(0).float() for layer in group.layers]).amax(0))

    def error(scales: Tensor) -> float:
        by_input = scales[producer.spread]
        importance = None if recipe.importance is None else recipe.importance / by_input.square().numpy()
        scaled = replace(recipe, importance=importance)
        return sum(output_error(judged / by_input, matrix * by_input, scaled) for matrix in matrices)

    least, best = WORTH * error(torch.ones(producer.count)), None
    for strength in STRENGTHS:
        scales = channel_scales(inputs, weights, strength)
        if (off := error(scales)) < least:
            least, best = off, scales
    return best


def channel_scales(inputs: Tensor, weights: Tensor, strength: float) -> Tensor:
    """Powers of two [count] around 1: inputs^a / weights^(1 - a), both magnitudes. Channels without signal get 1."""
    alive = (inputs > 0) & (weights > 0)
    if not bool(alive.any()):
        return torch.ones_like(inputs)
    exponents = strength * torch.log2(inputs) - (1 - strength) * torch.log2(weights)
    exponents = torch.where(alive, exponents - exponents[alive].mean(), 0.0)
    return torch.exp2(exponents.round().clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT))
