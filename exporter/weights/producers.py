"""Finds, by trial, the parameters that exactly scale the inputs of a group of linear layers.

This needs no knowledge of architectures. A candidate (a norm, a preceding linear layer) is scaled by powers of two and
the group by the inverse, and the part of the model that contains both runs again. The candidate is accepted only if
every output bit is equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .collect_activations import InputGroup
from .layers import LinearLayer, linear_layers


@dataclass(frozen=True, eq=False)
class Producer:
    """The parameters that scale a group's inputs: channels [start, start + count) of the first axis of `views`.

    spread[j]: the channel that produces input j.
    """

    path: str
    views: tuple[Tensor, ...]
    start: int
    count: int
    spread: Tensor

    def scale(self, factors: Tensor) -> None:
        """Multiply the channels by `factors` [count], in place."""
        for view in self.views:
            part = view.narrow(0, self.start, self.count)
            part *= factors.to(part.dtype).reshape(-1, *[1] * (part.ndim - 1))


@dataclass(frozen=True, eq=False)
class Call:
    """A module's arguments and output, kept to run it again."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class Probe:
    """One pass of `model` over a few tokens [1, T] that records every module's call and every norm's output."""

    def __init__(self, model: nn.Module, tokens: Tensor) -> None:
        self.model = model
        self.layers = linear_layers(model)
        self.modules = dict(model.named_modules())
        self.calls: dict[str, Call] = {}
        self.makers: dict[str, str] = {}  # linear layer -> the module that made its input
        # By address, since a full slice is another tensor object; the trial rejects a wrong guess.
        made: dict[int, str] = {}
        linear = {layer.path for layer in self.layers}

        def before(path: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
                if args[0].data_ptr() in made:
                    self.makers[path] = made[args[0].data_ptr()]

            return hook

        def after(path: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
                self.calls[path] = Call(args, kwargs, output)
                if isinstance(output, Tensor) and _vectors(module):
                    made[output.data_ptr()] = path

            return hook

        hooks = [self.modules[path].register_forward_pre_hook(before(path)) for path in linear]
        hooks += [module.register_forward_hook(after(path), with_kwargs=True) for path, module in self.modules.items()]
        try:
            with torch.no_grad():
                self.logits = self.run(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        self.tokens = tokens

    def run(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def producer(self, group: InputGroup, norms: bool = True) -> Producer | None:
        """The first candidate that scales the group's inputs and nothing else, or None. norms: try them too."""
        if group.calls != 1 or any(layer.path not in self.calls for layer in group.layers):
            return None
        for producer in self._candidates(group):
            if not norms and _vectors(self.modules[producer.path]):
                continue
            pattern = torch.exp2((torch.arange(producer.count) * 5 % 3 - 1).float())
            if self.try_scales(group, producer, pattern):
                undo(group, producer, pattern)
                return producer
        return None

    def try_scales(self, group: InputGroup, producer: Producer, scales: Tensor) -> bool:
        """Apply powers of two [count]. Undo and return False if they change any bit of the model's output."""
        before = [layer.matrix.clone() for layer in group.layers] + [view.clone() for view in producer.views]
        apply(group, producer, scales)
        if self._unchanged(group, producer, scales, before):
            return True
        for tensor, kept in zip([layer.matrix for layer in group.layers] + list(producer.views), before, strict=True):
            tensor.copy_(kept)
        return False

    def unchanged(self) -> bool:
        """Whether the whole model still computes the same logits, bit for bit."""
        with torch.no_grad():
            return torch.equal(self.run(self.tokens), self.logits)

    def nearly_unchanged(self, tolerance: float) -> bool:
        """Whether no logit has changed by more than `tolerance` standard deviations."""
        with torch.no_grad():
            off = (self.run(self.tokens) - self.logits).abs().max()
        return bool(off <= tolerance * self.logits.std())

    def _candidates(self, group: InputGroup) -> Iterator[Producer]:
        first = group.layers[0]
        whole = torch.arange(group.inputs)
        maker = self.makers.get(first.path)
        if maker is not None and all(vector.shape[0] == group.inputs for vector in _vectors(self.modules[maker])):
            yield Producer(maker, _vectors(self.modules[maker]), 0, group.inputs, whole)
        parent, paths = _parent(first.path), [layer.path for layer in self.layers]
        for layer in reversed(self.layers[: paths.index(first.path)]):
            if _parent(layer.path) == parent:
                yield from _of_linear(layer, group.inputs, self.modules[parent])

    def _unchanged(self, group: InputGroup, producer: Producer, scales: Tensor, before: Sequence[Tensor]) -> bool:
        by_input = scales[producer.spread]
        for layer, kept in zip(group.layers, before, strict=False):
            if not torch.equal(layer.matrix / by_input.to(kept.dtype), kept):
                return False  # out of the dtype's range
        path = _common([producer.path, *(layer.path for layer in group.layers)])
        while path not in self.calls:  # a ModuleList is never called
            path = _parent(path)
        given: dict[str, Tensor] = {}
        hooks = [layer.module.register_forward_pre_hook(_keep(layer.path, given)) for layer in group.layers]
        try:
            with torch.no_grad():
                call = self.calls[path]
                output = self.modules[path](*call.args, **call.kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        scaled = all(
            layer.path in given
            and torch.equal(given[layer.path], self.calls[layer.path].args[0] / by_input.to(given[layer.path].dtype))
            for layer in group.layers
        )
        return scaled and _same(output, call.output)


def apply(group: InputGroup, producer: Producer, scales: Tensor) -> None:
    """Divide the producer's outputs by `scales` [count] and multiply the group's columns by them."""
    producer.scale(1 / scales)
    by_input = scales[producer.spread]
    for layer in group.layers:
        matrix = layer.matrix
        matrix *= by_input.to(matrix.dtype)


def undo(group: InputGroup, producer: Producer, scales: Tensor) -> None:
    apply(group, producer, 1 / scales)


def _of_linear(layer: LinearLayer, inputs: int, parent: nn.Module) -> Iterator[Producer]:
    """Candidates of a layer whose outputs, or some of them, are the inputs, repeated by head for grouped queries."""
    bias = getattr(layer.module, "bias", None)
    views = (layer.matrix,) if bias is None else (layer.matrix, bias.data)
    outputs = layer.matrix.shape[0]
    whole = torch.arange(inputs)
    if outputs % inputs == 0:
        for start in range(outputs - inputs, -1, -inputs):
            yield Producer(layer.path, views, start, inputs, whole)
    head = getattr(parent, "head_dim", None)
    if outputs < inputs and isinstance(head, int) and inputs % outputs == 0 and outputs % head == 0:
        repeats = inputs // outputs
        yield Producer(layer.path, views, 0, outputs, whole // (head * repeats) * head + whole % head)


def _vectors(module: nn.Module) -> tuple[Tensor, ...]:
    """A norm's weight and bias: the module's own parameters if all of them have one axis, else none."""
    own = [parameter.data for parameter in module.parameters(recurse=False)]
    return tuple(own) if own and all(parameter.ndim == 1 for parameter in own) else ()


def _keep(path: str, given: dict[str, Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        given[path] = args[0]

    return hook


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return isinstance(found, Tensor) and torch.equal(found, expected)
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(_same(found.get(key), value) for key, value in expected.items())
    if isinstance(expected, list | tuple):
        return isinstance(found, list | tuple) and len(found) == len(expected) and all(map(_same, found, expected))
    return True  # a cache or nothing


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _common(paths: Sequence[str]) -> str:
    """The path of the innermost module that properly contains all of `paths`."""
    parts = [path.split(".")[:-1] for path in paths]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
