"""How a weight of the checkpoint is called in a traced graph."""

from __future__ import annotations

import onnx_ir as ir

# `trace` wraps the model in a module that calls it `model`; a recipe names weights as the checkpoint does.
PREFIX = "model."


def parameter_name(weight: ir.Value) -> str:
    return (weight.name or "").removeprefix(PREFIX)
