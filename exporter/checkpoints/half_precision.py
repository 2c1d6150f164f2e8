"""Half precision: torch's dtypes, and a model's outputs without rounding between layers, or with that of its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Conv1d, Module
from transformers import AttentionInterface

from ...bundle import Contract, Precision
from ..weights.layers import hooked

TORCH_DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@contextmanager
def fp32_arithmetic(model: Module) -> Iterator[None]:
    """The model computes in fp32 over the weights it has, while the context lasts.

    A module's weights are widened when it is called and restored after the call, so no more than one module's
    matrices are ever held in fp32. With them go the vectors of its parts, which it may read itself, and beside a
    convolution all of their weights: a hybrid's layer hands its convolution's weight to a function, which rounds what
    it convolves to the weight's type, and Jamba's multiplies by the matrix of another part.
    """
    calls: list[list[tuple[Tensor, Tensor]]] = []  # what each call widened, by depth

    def widen(module: Module, args: Any) -> None:
        narrow = [(tensor, tensor.data) for tensor in _needed(module) if tensor.dtype != torch.float32]
        calls.append(narrow)
        for tensor, data in narrow:
            tensor.data = data.float()

    def restore(module: Module, args: Any, output: Any) -> None:
        for tensor, data in calls.pop():
            tensor.data = data

    narrow = [module for module in model.modules() if any(tensor.dtype != torch.float32 for tensor in _needed(module))]
    with (
        hooked(module.register_forward_pre_hook(widen) for module in narrow),
        hooked(module.register_forward_hook(restore, always_call=True) for module in narrow),
    ):
        yield


def _needed(module: Module) -> Iterator[Tensor]:
    """What the module computes with itself."""
    yield from _direct_float_tensors(module)
    convolves = any(isinstance(part, Conv1d) for part in module.children())
    for part in module.children():
        yield from (tensor for tensor in _direct_float_tensors(part) if convolves or tensor.ndim < 2)


def _direct_float_tensors(module: Module) -> Iterator[Tensor]:
    yield from (
        tensor
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if tensor.is_floating_point()
    )


@contextmanager
def cached_as(contract: Contract | None) -> Iterator[None]:
    """Where a contract's caches are coarser than everything else, attention gets keys and values as these hold them.

    Attention of a pass reads its own rows in the cache too, so all of them are rounded.
    """
    if contract is None or contract.caches == contract.precision:
        yield
        return
    dtype, found = TORCH_DTYPES[contract.caches], AttentionInterface.get_interface

    def get_interface(self: AttentionInterface, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        attend = found(self, name, default)

        def over_cache(module: Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
            return attend(module, query, key.to(dtype).to(key), value.to(dtype).to(value), *args, **options)

        return over_cache

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = found
