"""The linear recurrences of transformers' models, by the function that computes each over any number of tokens.

All are S = exp(decay) S + k (x) v, with the delta rule S = exp(decay) S + beta k (x) (v - exp(decay) S^T k), and give
S^T q: what ONNX Runtime's `LinearAttention` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ...bundle import COUNTS, CacheLayer, Contract
from ...errors import UnsupportedModelError

StateIndex = tuple[int, int]  # a layer, and which of its states of one kind


@dataclass
class OpenStates:
    """The inputs that a graph has for states, and what it gives back.

    pending, certain: `[1] int64`, see `Contract`. window: rows that may be open. widest: tokens of the widest pass.
    past: by place and part, of the shapes of `State`. order: what an emitter computes once for all layers.
    """

    pending: Tensor
    certain: Tensor
    window: int
    widest: int
    past: dict[StateIndex, dict[str, Tensor]]
    present: dict[StateIndex, dict[str, Tensor]] = field(default_factory=dict)
    order: Any = None

    @classmethod
    def of(cls, layers: tuple[CacheLayer, ...], contract: Contract, inputs: Mapping[str, Tensor]) -> OpenStates:
        """inputs: of the graph, by name."""
        past: dict[StateIndex, dict[str, Tensor]] = {}
        for index, layer in enumerate(layers):
            for state in layer.states:
                past.setdefault((index, state.index), {})[state.part] = inputs[f"past.{index}.{state.name}"]
        pending, certain = (inputs[name] for name in COUNTS)
        window = contract.widest_step
        return cls(pending, certain, window, max(window, contract.prompt_chunk), past)

    def in_order(self, layers: tuple[CacheLayer, ...]) -> list[Tensor]:
        """What the graph gives back, by layer and state. Raises `UnsupportedModelError` where something is missing."""
        present = []
        for index, layer in enumerate(layers):
            for state in layer.states:
                part = self.present.get((index, state.index), {}).get(state.part)
                if part is None:
                    raise UnsupportedModelError(f"layer {index} advances its state by code of its own")
                present.append(part)
        return present


@dataclass(frozen=True)
class Recurrence:
    """What a recurrence reads of T rows, each part `[1, T, heads * width]`.

    parts: query, key, value, decay (one number a head, or one a row of its state) and with the delta rule beta.
    key_heads: of query and key, each for as many value heads in a row. finish: from the outputs
    `[1, T, heads * value_dim]` fp32 to what the replaced function gives.
    """

    parts: tuple[Tensor, ...]
    key_heads: int
    heads: int
    update_rule: Literal["gated", "gated_delta"]
    scale: float
    finish: Callable[[Tensor], Tensor]

    @property
    def row(self) -> int:
        """Numbers a row."""
        return sum(part.shape[-1] for part in self.parts)

    @property
    def state(self) -> tuple[int, int, int]:
        """Heads, rows and columns of the state."""
        _, key, value = self.parts[:3]
        return self.heads, key.shape[-1] // self.key_heads, value.shape[-1] // self.heads


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Recurrence:
    """query, key `[1, T, key_heads, key_dim]`, value `[1, T, heads, value_dim]`, beta `[1, T, heads]`.

    g: `[1, T, heads]`, or `[1, T, heads, key_dim]` as in Kimi's delta attention.
    """
    kind, shape = query.dtype, value.shape
    query, key = query.float(), key.float()
    if use_qk_l2norm_in_kernel:
        query, key = (part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6) for part in (query, key))
    parts = tuple(part.flatten(2) for part in (query, key, value, g, beta))
    scale = query.shape[-1] ** -0.5
    return Recurrence(
        parts, key.shape[2], shape[2], "gated_delta", scale, lambda output: output.reshape(shape).to(kind)
    )


def selective_scan(
    values: Tensor,
    dt: Tensor,
    decay: Tensor,
    keys: Tensor,
    queries: Tensor,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **kwargs: Any,
) -> Recurrence:
    """Mamba-2's: values `[1, T, heads, value_dim]`, dt `[1, T, heads]`; decay, keys and queries are A, B and C.

    decay: `[heads]`. keys, queries: `[1, T, key_heads, key_dim]`. D `[heads]`, a skip, comes by its name.
    """
    if kwargs.get("z") is not None:
        raise UnsupportedModelError("a layer gates its selective scan, which nothing here knows")
    shape, skip = values.shape, kwargs.get("D")
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    dt = (functional.softplus(dt) if dt_softplus else dt).float()
    if tuple(dt_limit) != (0.0, float("inf")):
        dt = torch.clamp(dt, *dt_limit)
    values = values.float()
    parts = (queries.flatten(2), keys.flatten(2), (values * dt[..., None]).flatten(2), decay.float() * dt)

    def finish(output: Tensor) -> Tensor:
        result = output.reshape(shape)
        return result if skip is None else result + skip[..., None] * values

    return Recurrence(parts, keys.shape[2], shape[2], "gated", 1.0, finish)


def selective_scan_by_channel(
    values: Tensor,
    dt: Tensor,
    decay: Tensor,
    keys: Tensor,
    queries: Tensor,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **kwargs: Any,
) -> Recurrence:
    """Mamba's: values, dt `[1, heads, T]`, a head a channel; decay, keys and queries are A, B and C.

    decay: `[heads, key_dim]`. keys, queries: `[1, key_dim, T]`, of all heads. D `[heads]`, a skip, and z, a gate of the
    shape of values, come by their names.
    """
    kind, skip, gate = values.dtype, kwargs.get("D"), kwargs.get("z")
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    dt = (functional.softplus(dt) if delta_softplus else dt).float().transpose(1, 2)
    rows = values.float().transpose(1, 2)
    decays = (dt[..., None] * decay.float()).flatten(2)
    parts = (queries.float().transpose(1, 2), keys.float().transpose(1, 2), rows * dt, decays)

    def finish(output: Tensor) -> Tensor:
        result = output if skip is None else output + skip * rows
        result = result.transpose(1, 2).to(kind)
        return result if gate is None else result * functional.silu(gate)

    return Recurrence(parts, 1, values.shape[1], "gated", 1.0, finish)


RECURRENCES: dict[str, Callable[..., Recurrence]] = {
    "torch_chunk_gated_delta_rule": gated_delta_rule,
    "chunk_kimi_delta_attention": gated_delta_rule,
    "mamba2_chunk_scan": selective_scan,
    "mamba_selective_scan": selective_scan_by_channel,
}
