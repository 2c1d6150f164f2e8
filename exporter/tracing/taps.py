"""Hidden states of the target, as an output of its graph, for drafts that read them (`exporter/hidden_drafts`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...bundle import LAST
from ...errors import UnsupportedModelError
from ..weights.layers import hooked
from ..weights.rotation import Rotation

# Tokens by which it is seen how quantization changed a model, and how far two equal states may be apart, in standard
# deviations: what rounding of changed weights explains, as `weights/rotation.py` has it for logits.
PROBED = 16
SAME = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@contextmanager
def taps_seen(model: PreTrainedModel, taps: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """By tap, what a pass in the context has there, `[1, T, D]`: what layer `tap` reads, or for `LAST` what the decoder
    gives, after its last norm.

    Raises `UnsupportedModelError` for a model whose layers are not found, and for a tap that it does not have.
    """
    decoder, seen, layers = model.get_decoder(), dict[int, Tensor](), decoder_layers(model)
    if layers is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not keep its layers in one list, so a draft cannot read its hidden states"
        )
    if beyond := [tap for tap in taps if not LAST <= tap < len(layers)]:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(layers)} layers, and the draft reads what layer {beyond[0]} reads"
        )

    def before(tap: int) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            seen[tap] = arguments[0] if arguments else options["hidden_states"]

        return hook

    def after(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        seen[LAST] = output[0]

    hooks = [layers[tap].register_forward_pre_hook(before(tap), with_kwargs=True) for tap in taps if tap != LAST]
    if LAST in taps:
        hooks.append(decoder.register_forward_hook(after))
    with hooked(hooks):
        yield seen


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """None for a model that does not keep them in one list."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = (module for module in model.get_decoder().children() if isinstance(module, nn.ModuleList))
    return next((module for module in lists if len(module) == count), None)


@dataclass(frozen=True)
class Undo:
    """Makes the hidden states of the checkpoint of those of a model that was changed in place for quantization, with
    the same logits: its residual stream may be rotated (`weights/rotation.py`), and a gain moved from its last norm
    into the output embedding. gain: `[D]`, of that.
    """

    rotation: Rotation | None = None
    gain: Tensor | None = None

    def __call__(self, tap: int, state: Tensor) -> Tensor:
        state = state.float() if self.rotation is None else self.rotation.back(state)
        return state * self.gain if tap == LAST and self.gain is not None else state


class TapProbe:
    """Sees a model's hidden states before it is changed, and tells how to undo the change. width: D, of each tap.

    Raises `UnsupportedModelError` for a model that does not show them as `[1, T, D]`.
    """

    def __init__(self, model: PreTrainedModel, taps: tuple[int, ...]) -> None:
        self._model, self._taps = model, taps
        size = model.get_input_embeddings().num_embeddings
        self._tokens = torch.randint(0, size, (1, PROBED), generator=torch.Generator().manual_seed(0))
        self._before = self._states()
        sizes = [state.shape for state in self._before.values()]
        if len(sizes) < len(taps) or any(size[:-1] != (1, PROBED) or size != sizes[0] for size in sizes):
            raise UnsupportedModelError(
                f"{type(model).__name__} does not show its hidden states as [1, tokens, width] at layers "
                f"{', '.join(map(str, taps))}, so a draft cannot read them"
            )
        self.width = sizes[0][-1]

    def undo(self) -> Undo:
        """Raises `UnsupportedModelError` for a change of another kind."""
        after = self._states()
        for rotation in (None, Rotation(next(iter(after.values())).shape[-1])):
            undo = Undo(rotation)
            if LAST in self._taps:
                undo = Undo(rotation, _gain(self._before[LAST], undo(LAST, after[LAST])))
            if all(self._same(self._before[tap], undo(tap, after[tap])) for tap in self._taps):
                return undo
        raise UnsupportedModelError(
            f"{type(self._model).__name__}: quantization changes its hidden states, and the draft reads them; build it "
            "in fp32, or leave the draft out"
        )

    def _same(self, one: Tensor, other: Tensor) -> bool:
        return float((one - other).abs().max()) <= SAME[self._model.dtype] * float(one.std())

    def _states(self) -> dict[int, Tensor]:
        with torch.no_grad(), taps_seen(self._model, self._taps) as seen:
            self._model(input_ids=self._tokens, use_cache=False)
        return {tap: state.float().clone() for tap, state in seen.items()}


def _gain(before: Tensor, after: Tensor) -> Tensor:
    """`[D]`: by what each channel was multiplied before, where it is largest."""
    place = after[0].abs().argmax(0, keepdim=True)
    largest = after[0].gather(0, place)[0]
    return torch.where(largest == 0, torch.ones_like(largest), before[0].gather(0, place)[0] / largest)
