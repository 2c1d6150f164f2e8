"""What a graph gave, imposed on the Hugging Face model: values of its products, and a router's choice of experts.

What a graph's products gave for the rows that a model is fed in a pass: those of the pass, or of the whole sequence.

A model over a cache is fed the rows of the pass. One whose states cannot be rolled back is fed all rows again, and is
told of the earlier ones what the graph gave for them when it took them in.

A router's choice of experts as a graph made it, imposed on the Hugging Face model, and how good a choice it is.

Where two experts have nearly the same score, rounding decides which of them a token goes to, and either is right: what
follows differs by a whole expert. So the model takes the graph's experts, with the weights that its own scores give
them. How far the choice is from its own best is what the graph may be wrong by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...errors import ProofError
from ..weights.experts import ExpertLayer

Tapped = Mapping[str, NDArray[Any]]


class ActivationLog:
    """kept: names of values whose rows are kept beyond a pass, for sequences of up to `longest` tokens.

    fed: how many tokens the model is fed.
    """

    def __init__(self, kept: frozenset[str] = frozenset(), longest: int = 0) -> None:
        self._longest = longest
        self._kept: dict[str, NDArray[Any] | None] = dict.fromkeys(kept)
        self._new: Tapped = {}
        self._end = self.fed = 0

    def take(self, tapped: Tapped, position: int, width: int) -> None:
        """What the graph gave in a pass of `width` tokens after `position` rows. Later rows than these are dropped."""
        self._new, self._end = tapped, position + width
        self.fed = self._end if self._longest else width
        for name, array in self._kept.items():
            values = rows(tapped[name])
            each = max(1, len(values) // width)  # a token has a row for each of its experts
            if array is None:
                self._kept[name] = array = np.zeros((self._longest * each, values.shape[1]), values.dtype)
            array[each * self._end - len(values) : each * self._end] = values

    def of_pass(self, name: str) -> NDArray[Any]:
        """Rows `[n, N]` of the pass."""
        return rows(self._new[name])

    def of_fed(self, name: str) -> NDArray[Any]:
        """Rows of all tokens that the model is fed, or of the last of them."""
        array = self._kept.get(name)
        return self.of_pass(name) if array is None else array[: self._end * (len(array) // self._longest)]


def rows(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)


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
