"""A model's linear layers and embedding tables, found by module type, with the names of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...errors import CheckpointError


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer. path: the module's name.

    weight: its parameter's name; for a head tied to the embedding, the embedding's. transposed: the parameter is [K,
    N].
    """

    path: str
    module: nn.Module
    weight: str
    transposed: bool

    @property
    def parameter(self) -> nn.Parameter:
        parameter = self.module.weight
        assert isinstance(parameter, nn.Parameter)
        return parameter

    @property
    def matrix(self) -> Tensor:
        """[N, K], a view of the parameter."""
        return self.parameter.data.T if self.transposed else self.parameter.data


def linear_layers(model: nn.Module) -> list[LinearLayer]:
    """Every nn.Linear and GPT-2 Conv1D, in the model's order."""
    names = parameter_names(model)
    layers = []
    for path, module in model.named_modules():
        transposed = type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)
        if transposed or isinstance(module, nn.Linear):
            weight = module.weight
            assert isinstance(weight, nn.Parameter)
            layers.append(LinearLayer(path, module, names[id(weight)], transposed))
    return layers


def tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """Embedding tables [V, H] by name: of tokens and of learned positions."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in embeddings}


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Names by the id of the parameter; a shared parameter has its first name."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """The hooks of `handles` are there while the context lasts."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


class HeadReachedError(Exception):
    """Raised when a pass under `stopped_at_head` reaches the head."""


@contextmanager
def stopped_at_head(model: nn.Module) -> Iterator[Callable[[Tensor], None]]:
    """A context whose value is a function that runs `model` on tokens [B, T] up to the head, without computing logits.

    Hooks that are registered on the head before still get its inputs. A model without a head runs to its end.
    """
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()

    def stop(module: nn.Module, args: tuple[Any, ...]) -> None:
        raise HeadReachedError

    def run(tokens: Tensor) -> None:
        try:
            with torch.no_grad():
                model(input_ids=tokens, use_cache=False)
        except HeadReachedError:
            pass

    with hooked([head.register_forward_pre_hook(stop)] if head is not None else []):
        yield run


def check_finite(model: nn.Module) -> None:
    """Raises `CheckpointError` naming the first parameter with a NaN or an infinity."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.data).all()):
            count = int((~torch.isfinite(parameter.data)).sum())
            raise CheckpointError(
                f"{name}: {count} of its {parameter.numel()} weights are NaN or infinite, expected finite ones; "
                "export or download the checkpoint again"
            )


class NormReaders:
    """Which linear layers read which norms, found by one pass of `model` over tokens [1, T], whatever its architecture.

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
