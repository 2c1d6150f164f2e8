"""References whose caches round as a contract's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from ...bundle import Contract
from ..checkpoints.half_precision import TORCH_DTYPES


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

        def over_cache(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
            return attend(module, query, key.to(dtype).to(key), value.to(dtype).to(value), *args, **options)

        return over_cache

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = found
