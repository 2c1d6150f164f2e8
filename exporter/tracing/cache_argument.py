"""What transformers calls the cache of a model: `past_key_values`, and `cache` from 5.24 on."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

OLD, NEW = "past_key_values", "cache"


def cache_argument(model: nn.Module) -> str:
    """The keyword of the model's forward that takes its cache. A model's own code may have the old one."""
    return NEW if NEW in inspect.signature(model.forward).parameters else OLD


def cache_of(output: Any) -> Any:
    """The cache that a model returned with its output; None if it has none."""
    fields = getattr(output, "__dict__", {})  # the old name is also a property, which logs that it is old
    return fields.get(NEW, fields.get(OLD))
