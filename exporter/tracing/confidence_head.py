"""The confidence head in a draft's graph: a linear layer that guesses whether the token drafted next will be accepted.

DSpark (arXiv 2607.05147): c = sigmoid(w . [h ; e(x)] + b), where h is what the output embedding reads and e(x) the
input embedding of the row's own token. The weights are an input of the graph, so that calibration can change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...bundle import CONFIDENCE, FEATURES

OUTPUTS = (FEATURES, CONFIDENCE)


@dataclass
class Seen:
    """What passed through the embeddings in one pass: hidden `[1, R, H]`, embedded `[1, T, E]`, one entry a call."""

    hidden: list[Tensor] = field(default_factory=list)
    embedded: list[Tensor] = field(default_factory=list)


def probe_features(model: PreTrainedModel) -> int:
    """F, how many numbers a head reads a row, found by running two tokens; 0 where the model does not show them.

    That is: its embeddings are no modules of their own, or are not called just once a pass with a row a token.
    """
    try:
        with torch.no_grad(), embeddings_seen(model) as seen:
            model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True)
        (hidden,), (embedded,) = seen.hidden, seen.embedded
        shapes = [list(part.shape) for part in (hidden, embedded)]
    except Exception:  # a head is never worth a refusal, and the trace tells what is wrong with the model
        return 0
    return sum(shape[2] for shape in shapes) if all(len(shape) == 3 and shape[:2] == [1, 2] for shape in shapes) else 0


@contextmanager
def embeddings_seen(model: PreTrainedModel, keep: Callable[[Tensor], Tensor] = lambda hidden: hidden) -> Iterator[Seen]:
    """What the output embedding reads, which is now `keep(hidden)`, and the input embedding gives in the context."""
    seen = Seen()

    def before(module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.hidden.append(keep(arguments[0]))
        return seen.hidden[-1], *arguments[1:]

    def after(module: torch.nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        seen.embedded.append(output)

    hooks = [model.get_output_embeddings().register_forward_pre_hook(before)]
    try:
        hooks.append(model.get_input_embeddings().register_forward_hook(after))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def confidence(seen: Seen, weights: Tensor, keep: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """`features [1, R, F]` and the head's logit `[1, R]` by its weights `[F + 1]`, the bias last; all float32."""
    (hidden,), (embedded,) = seen.hidden, seen.embedded
    features = torch.cat([hidden.float(), keep(embedded).float()], -1)
    return features, features @ weights[:-1] + weights[-1:]
