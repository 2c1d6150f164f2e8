"""A router's choice of experts as a graph made it, imposed on the Hugging Face model, and how good a choice it is.

Where two experts have nearly the same score, rounding decides which of them a token goes to, and either is right: what
follows differs by a whole expert. So the model takes the graph's experts, with the weights that its own scores give
them. How far the choice is from its own best is what the graph may be wrong by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...calibration.weights.experts import ExpertLayer
from ...errors import ProofError

Chosen = NDArray[np.int64]


def routed(model: nn.Module, stacks: Sequence[ExpertLayer]) -> dict[nn.Module, ExpertLayer]:
    """By the module that holds the experts and their router, the first stack."""
    found: dict[nn.Module, ExpertLayer] = {}
    for layer in stacks:
        experts = layer.path.rpartition(".")[0]
        found.setdefault(model.get_submodule(experts.rpartition(".")[0]), layer)
    return found


@contextmanager
def imposed(
    block: nn.Module, experts: int, chosen: Callable[[], Chosen], note: Callable[[float], None]
) -> Iterator[None]:
    """`block` takes the experts `chosen()` [T, k], of so many, in place of those that its own scores would take.

    note: is told how far that choice is below the block's own best, in units of the scores' size. A block whose router
    picks in another way than by `topk` of scores [T, E] chooses itself.
    """
    mode = _Choosing(experts, chosen, note)
    own = block.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        with mode:
            return own(*arguments, **options)

    block.forward = forward
    try:
        yield
    finally:
        del block.forward


class _Choosing(TorchFunctionMode):
    def __init__(self, experts: int, chosen: Callable[[], Chosen], note: Callable[[float], None]) -> None:
        super().__init__()
        self.experts, self.chosen, self.note = experts, chosen, note

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **kwargs or {})
        if func not in (torch.topk, Tensor.topk):
            return found
        scores, (values, indices) = args[0], found
        theirs = torch.from_numpy(self.chosen())
        if indices.shape != theirs.shape or scores.shape[-1] != self.experts:  # of groups of experts
            return found
        _check(theirs, self.experts)
        picked = scores.gather(-1, theirs)
        self.note(_below(values.float(), picked.float(), scores.float()))
        return type(found)((picked, theirs))


def _check(chosen: Tensor, experts: int) -> None:
    ordered = chosen.sort(-1).values
    if bool((ordered < 0).any() | (ordered >= experts).any() | (ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ProofError(f"the graph sends a token to one of {experts} experts twice, or to one that does not exist")


def _below(best: Tensor, picked: Tensor, scores: Tensor) -> float:
    """The most that the picked scores [T, k] are below the best, over the root mean square of a token's scores [T, E].

    Rank by rank, so that no expert that stands out can be missed for one that is nearly the last. Experts that are
    masked by infinities count for nothing, and infinitely if they are picked.
    """
    off = (best.sort(-1).values - picked.sort(-1).values).nan_to_num(nan=torch.inf, posinf=torch.inf).amax(-1)
    sizes = torch.where(scores.isfinite(), scores, 0.0).square().sum(-1) / scores.isfinite().sum(-1).clamp(min=1)
    return float((off / sizes.sqrt().clamp(min=torch.finfo(torch.float32).tiny)).max())
