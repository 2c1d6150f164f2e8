"""The Hugging Face model with its quantized layers answering what a graph's did, so that everything between them is
compared by itself.

Rounding is what makes two right models stray from each other: a value that lies at the edge of a step falls to either
side, and what follows is rounded from there. Here every quantized layer hands on what the graph computed, so nothing
is rounded in torch. What the next layer reads (through norms, attention over the cache, residuals, activations and
biases) must then be what the graph's next layer read, to the exactness of fp32. That finds a layer that reads the wrong
value, a residual or a bias that is missing, gains that were swapped, a mask or a position that is off.

A router's choice is the graph's too (`told.py`): where two experts count nearly the same, either is right.

Layers that keep states cannot be rolled back with the library's cache. Such a model is fed the whole sequence in each
pass, its earlier rows with what the graph gave for them then, which its states are made of (`told.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import ProofError
from ..checkpoints.half_precision import fp32_arithmetic
from ..weights.experts import ExpertLayer, expert_layers
from ..weights.fake_quant import restored
from ..weights.layers import LinearLayer, linear_layers, tables
from ..weights.recipe import Recipe
from .activation_log import ActivationLog, Tapped, imposed, routed
from .prove import Continued, Evaluated, Repeated
from .quantized_ops import QuantizedOp


@dataclass(frozen=True)
class Part:
    """A layer's share of a product: those of its outputs that are the layer's."""

    site: QuantizedOp
    outputs: slice


@dataclass
class MaxDeviation:
    """The largest difference so far, and what reads it. See `difference`."""

    error: float = 0.0
    reader: str = "nothing"

    def note(self, error: float, reader: str) -> None:
        if error > self.error:
            self.error, self.reader = error, reader


@dataclass
class PinnedModel:
    """A model in the context of `forced`. layers: the quantized ones, with their parts of the graph's products.

    stacks: the quantized ones of experts, each with its one product. told: what the graph gave.
    """

    model: Evaluated
    layers: dict[str, tuple[LinearLayer, list[Part]]]
    stacks: dict[str, QuantizedOp]
    activation_log: ActivationLog
    max_deviation: MaxDeviation = field(default_factory=MaxDeviation)
    _calls: dict[str, int] = field(default_factory=dict)

    def step(self, tokens: NDArray[np.int64], position: int, tapped: Tapped) -> NDArray[np.float32]:
        """Logits `[T, vocab]` of `tokens [T]` after the first `position` rows.

        tapped: what the graph gave in the same pass, by the name of the value; logits beyond its rows are worthless.
        """
        self._calls = dict.fromkeys((*self.layers, *self.stacks), 0)
        self.activation_log.take(tapped, position, len(tokens))
        logits = self.model.step(tokens, position)
        expected = {path: len(parts) for path, (_, parts) in self.layers.items()} | dict.fromkeys(self.stacks, 1)
        for path, count in expected.items():
            if self._calls[path] != count:
                raise ProofError(
                    f"{path} is computed {count} times a pass, the model does so {self._calls[path]} times"
                )
        return logits

    def answer(self, path: str, inputs: Tensor) -> Tensor:
        """In the place of a layer's own forward."""
        layer, parts = self.layers[path]
        call = self._calls[path]
        if call == len(parts):
            raise ProofError(f"{path} is missing among the graph's quantized products")
        self._calls[path] += 1
        site, outputs = parts[call].site, parts[call].outputs
        read = self.activation_log.of_pass(site.input)
        wanted = inputs.reshape(-1, inputs.shape[-1]).float()
        # of the last layer, fewer: only the rows whose logits are wanted
        self.max_deviation.note(difference(read, wanted[-len(read) :].numpy()), path)
        answered = torch.zeros(len(wanted), outputs.stop - outputs.start)
        known = self.activation_log.of_fed(site.output)[:, outputs]
        answered[-len(known) :] = torch.from_numpy(known)
        bias = getattr(layer.module, "bias", None)
        if bias is not None and not site.biased:
            answered += bias.float()
        return answered.reshape(*inputs.shape[:-1], -1).to(inputs.dtype)

    def answer_experts(self, path: str, rows: Tensor, experts: Tensor) -> Tensor:
        """In the place of a stack's own forward: rows [S, K], of each token as many as it has experts [S].

        The graph may have a token's experts in another order, where they count as much but for rounding.
        """
        site = self.stacks[path]
        self._calls[path] += 1
        read, answers = self.activation_log.of_pass(site.input), self.activation_log.of_fed(site.output)
        theirs = self.chosen(site)
        ours = experts.numpy().reshape(theirs.shape)
        if not np.array_equal(np.sort(ours, 1), np.sort(theirs, 1)):
            raise ProofError(f"{path}: the graph sends a token to other experts than the Hugging Face model")
        place = np.empty_like(theirs)
        np.put_along_axis(place, np.argsort(ours, 1), np.argsort(theirs, 1), 1)
        place += np.arange(len(theirs))[:, None] * theirs.shape[1]
        order = place.ravel()
        new = order[-len(read) :] - (len(order) - len(read))  # earlier rows were compared in their own pass
        self.max_deviation.note(difference(read[new], rows[-len(read) :].float().numpy()), path)
        return torch.from_numpy(answers[order]).to(rows.dtype)

    def chosen(self, site: QuantizedOp) -> NDArray[np.int64]:
        """The experts `[T, k]` that the graph sends each token to which the model is fed."""
        return np.asarray(self.activation_log.of_fed(site.experts), np.int64).reshape(self.activation_log.fed, -1)

    def note_choice(self, path: str, off: float) -> None:
        """off: how far the graph's choice for the stack is from the model's own, see `imposed`."""
        self.max_deviation.note(off, f"the router of {path}")


@contextmanager
def pinned_model(
    model: PreTrainedModel, recipe: Recipe, quantized_ops: Sequence[QuantizedOp], longest: int = 0
) -> Iterator[PinnedModel]:
    """`model` computes in fp32, its tables as the recipe rounds them, while the context lasts.

    sites: of the graph, in its order. longest: tokens of the longest sequence, for a model that keeps states. Raises
    `ProofError` for a site that claims weights which the recipe leaves alone.
    """
    layers = {layer.path: layer for layer in linear_layers(model) if _quantized(recipe, layer.weight)}
    parts = _parts(model, layers, [site for site in quantized_ops if not site.experts])
    stacks = [layer for layer in expert_layers(model) if _quantized(recipe, layer.weight)]
    known = {layer.weight for layer in stacks}
    for name in (name for site in quantized_ops if site.experts for name in site.weights if name not in known):
        raise ProofError(f"the graph stores the experts {name} in few bits, which the recipe does not")
    kept = _behind_a_pass(model, layers, parts, quantized_ops) if longest else frozenset[str]()
    state = PinnedModel(
        Repeated(model) if longest else Continued(model),
        {path: (layer, parts[path]) for path, layer in layers.items()},
        {layer.path: _of_stack(layer, quantized_ops) for layer in stacks},
        ActivationLog(kept, longest),
    )
    with ExitStack() as undo:
        for name, table in tables(model).items():
            if _quantized(recipe, name):
                undo.callback(setattr, table, "data", table.data)
                table.data = restored(table.data, recipe.weights[name])
        undo.enter_context(fp32_arithmetic(model))
        for path, layer in layers.items():
            undo.callback(delattr, layer.module, "forward")
            layer.module.forward = partial(state.answer, path)
        for stack in stacks:
            undo.callback(delattr, stack.module, "forward")
            stack.module.forward = partial(state.answer_experts, stack.path)  # type: ignore[method-assign]
        for block, stack in routed(model, stacks).items():
            chosen, note = partial(state.chosen, state.stacks[stack.path]), partial(state.note_choice, stack.path)
            undo.enter_context(imposed(block, stack.module.weight.shape[0], chosen, note))
        yield state


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """The largest |found - wanted| `[R, K]`, each column in units of its own size or of a typical column's if larger.

    So that a few columns with outliers hide nothing of the others. Infinite for what is no number.
    """
    size = np.sqrt(np.square(wanted, dtype=np.float64).mean(0))
    typical = float(np.median(size)) or float(np.sqrt(np.square(size).mean()))
    off = np.abs(found - wanted).max(0) / np.maximum(size, typical or 1.0)
    return float(off.max()) if np.isfinite(off).all() else np.inf


def _parts(
    model: PreTrainedModel, layers: Mapping[str, LinearLayer], quantized_ops: Sequence[QuantizedOp]
) -> dict[str, list[Part]]:
    """By the path of the layer, in the order of the graph."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    paths = {id(layer.parameter): path for path, layer in layers.items()}
    parts: dict[str, list[Part]] = {path: [] for path in layers}
    for site in quantized_ops:
        start = 0
        for name in site.weights:
            path = paths.get(id(parameters.get(name)))
            if path is None:
                raise ProofError(f"the graph stores {name} in few bits, which the recipe does not")
            end = start + layers[path].matrix.shape[0]
            parts[path].append(Part(site, slice(start, end)))
            start = end
    return parts


def _behind_a_pass(
    model: PreTrainedModel,
    layers: Mapping[str, LinearLayer],
    parts: Mapping[str, Sequence[Part]],
    quantized_ops: Sequence[QuantizedOp],
) -> frozenset[str]:
    """The values that say what the graph's products gave: all but the head's, which no later row reads."""
    head = model.get_output_embeddings()
    of_head = {part.site.output for path, layer in layers.items() if layer.module is head for part in parts[path]}
    return frozenset(name for site in quantized_ops for name in (site.output, site.experts) if name) - of_head


def _of_stack(layer: ExpertLayer, quantized_ops: Sequence[QuantizedOp]) -> QuantizedOp:
    found = [site for site in quantized_ops if site.experts and site.weights == (layer.weight,)]
    if len(found) != 1:
        raise ProofError(f"{layer.path} is computed {len(found)} times a pass among the graph's quantized products")
    return found[0]


def _quantized(recipe: Recipe, name: str) -> bool:
    return name in recipe.weights and recipe.weights[name].format != "float"
