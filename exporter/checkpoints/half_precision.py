"""Half precision: torch's dtypes, and a model's outputs without rounding between its layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...bundle import Precision

TORCH_DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@contextmanager
def fp32_arithmetic(model: Module) -> Iterator[None]:
    """The model computes in fp32 over the weights it has, while the context lasts.

    A module's weights are widened when it is called and restored after the call, so no more than one module's
    weights are ever held in fp32.
    """
    narrow: dict[Tensor, Tensor] = {}

    def widen(module: Module, args: Any) -> None:
        for tensor in _direct_float_tensors(module):
            narrow[tensor] = tensor.data
            tensor.data = tensor.data.float()

    def restore(module: Module, args: Any, output: Any) -> None:
        for tensor in _direct_float_tensors(module):
            if tensor in narrow:
                tensor.data = narrow.pop(tensor)

    hooks = []
    for module in model.modules():
        if any(
            tensor.is_floating_point() and tensor.dtype != torch.float32 for tensor in _direct_float_tensors(module)
        ):
            hooks.append(module.register_forward_pre_hook(widen))
            hooks.append(module.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _direct_float_tensors(module: Module) -> Iterator[Tensor]:
    yield from (
        tensor
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if tensor.is_floating_point()
    )
