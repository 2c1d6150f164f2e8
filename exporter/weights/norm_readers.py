"""Which linear layers read which norms, found by one pass of a model, without knowledge of its architecture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .layers import LinearLayer, hooked, linear_layers


class NormReaders:
    """One pass of `model` over tokens [1, T].

    readers: the linear layers that read a norm's output, by the norm, in the order of the calls. args: those of each
    norm's last call. called: the linear layers that were called.
    """

    def __init__(self, model: nn.Module, tokens: Tensor) -> None:
        self.readers: dict[nn.Module, list[LinearLayer]] = {}
        self.args: dict[nn.Module, tuple[Any, ...]] = {}
        self.called: list[LinearLayer] = []
        # By address, since a full slice is another tensor object; the trial with hooks rejects a wrong guess.
        self.made: dict[int, nn.Module] = {}
        self.outputs: list[Tensor] = []  # kept, so that no address is used again
        hooks = [layer.module.register_forward_pre_hook(self._before(layer)) for layer in linear_layers(model)]
        hooks += [module.register_forward_hook(self._after) for module in model.modules() if _is_norm(module)]
        with hooked(hooks):
            logits_of(model, tokens)

    def _before(self, layer: LinearLayer) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.called.append(layer)
            if (norm := self.made.get(args[0].data_ptr())) is not None:
                self.readers.setdefault(norm, []).append(layer)

        return hook

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            self.args[module] = args
            self.made[output.data_ptr()] = module
            self.outputs.append(output)


def _is_norm(module: nn.Module) -> bool:
    """Whether the module's own parameters, weight and bias, all have one axis."""
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and all(parameter.ndim == 1 for parameter in parameters)


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.float()
