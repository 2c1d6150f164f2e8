"""Stacks of experts: the weights [E, N, K] of one product of all experts of a layer, as a module that can be hooked.

transformers keeps such stacks as bare parameters and calls a registered function for the products. The function here
runs the same products through modules, so that hooks can observe, round and replace their inputs and outputs as with
linear layers. It runs only the chosen experts, one at a time; tracing would copy a weight for every row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from .layers import LinearLayer, parameter_names

# The name under which `forward_experts` is registered in transformers, and the implementation for other stacks.
IMPLEMENTATION = "specexport"
OTHERS = "batched_mm"
# Flags of transformers for stacks that are left as they are, and what they mean.
OTHERWISE = {
    "is_transposed": "stored as [E, K, N]",
    "has_bias": "with biases",
    "has_post_expert_norm": "with norms of their own",
}
UNSTACKED = "that are not stacked"  # those that `stack_experts` takes, while it has not


class ExpertStack(nn.Module):
    """From rows [S, K] and their experts [S] int64 to outputs [S, N]."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight  # [E, N, K]

    def forward(self, rows: Tensor, experts: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.matmul(self.weight.index_select(0, experts), rows.unsqueeze(-1)).squeeze(-1)
        outputs = rows.new_empty(rows.shape[0], self.weight.shape[1])
        for expert in sorted(set(experts.tolist())):
            mine = experts == expert
            outputs[mine] = rows[mine] @ self.weight[expert].T
        return outputs


class ExpertLayer(LinearLayer):
    """A stack in a model."""

    module: ExpertStack

    @property
    def matrix(self) -> Tensor:
        """[E N, K]: one row for each output of each expert."""
        return self.parameter.data.flatten(0, 1)


def expert_layers(model: nn.Module) -> list[ExpertLayer]:
    """Every `ExpertStack`, in the model's order."""
    names = parameter_names(model)
    return [
        ExpertLayer(path, module, names[id(module.weight)], transposed=False)
        for path, module in model.named_modules()
        if isinstance(module, ExpertStack)
    ]


def stack_experts(model: nn.Module) -> None:
    """Replace each bare stack by an `ExpertStack`, in place: the parameter `x` is then called `x.weight`.

    Stacks that are stored as [E, K, N], or have their own biases or norms, stay bare.
    """
    for _, module in _modules(model):
        known: Any = module
        if any(getattr(known, flag) for flag in OTHERWISE):
            continue
        for name in _names(known):
            weight = known._parameters.pop(name)
            module.add_module(name, ExpertStack(weight))
        known.config._experts_implementation = IMPLEMENTATION


def bare_stacks(model: nn.Module) -> dict[str, str]:
    """The names of the stacks that are not an `ExpertStack`, and how they are stored instead."""
    bare = {}
    for path, module in _modules(model):
        kinds = [kind for flag, kind in OTHERWISE.items() if getattr(module, flag)]
        for name in _names(module):
            if isinstance(getattr(module, name, None), nn.Parameter):
                bare[f"{path}.{name}".lstrip(".")] = " and ".join(kinds) or UNSTACKED
    return bare


def forward_experts(module: Any, rows: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """The outputs [T, H] of a layer of experts. rows: [T, H]. experts, weights: [T, k], the experts of each row, and
    their weights.
    """
    first, second = _names(module)
    if not isinstance(getattr(module, first), ExpertStack):
        outputs: Tensor = ALL_EXPERTS_FUNCTIONS[OTHERS](module, rows, experts, weights)
        return outputs
    count = experts.shape[-1]
    chosen = experts.reshape(-1)  # [T k]
    inner = getattr(module, first)(rows.repeat_interleave(count, dim=0), chosen)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    outer = getattr(module, second)(inner, chosen) * weights.reshape(-1, 1)
    summed: Tensor = outer.view(-1, count, rows.shape[-1]).sum(1)
    return summed.to(rows.dtype)


def _modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that contain stacks of experts, with their paths."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if getattr(module, "has_gate", None) is not None and hasattr(module, "is_transposed")
    ]


def _names(module: Any) -> tuple[str, str]:
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, forward_experts)
