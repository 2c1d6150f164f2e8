"""What all drafts share that read the target's hidden states.

Row i reads (h_i, x_{i+1}), the target's hidden states of token i and the token after it, and predicts x_{i+2}
(EAGLE-3, arXiv 2503.01840, section 3; MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2). The tokens that a draft is
given are therefore those *after* its rows. A drafted row has no hidden states of the target yet: it reads what the row
before it gave back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask, sliding_window_overlay

from ...bundle import ELEMENT_BYTES, Defaults, HiddenDraftKind
from ..checkpoints.checkpoint import Checkpoint

# What transformers calls a cache, before 5.24 and from then on.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
KEPT = 1 << 29  # bytes of hidden states that a build keeps: 10 thousand tokens of three layers of an 8B

# How many of the last rows, 0 for all; their numbers; or a function that takes them from `[1, T, H]`.
RowsToKeep = int | Tensor | Callable[[Tensor], Tensor]


def copied(part: str, weight: Tensor) -> str:
    """The note of a draft that has a copy of `weight`."""
    return f"the {part} is the target's: {weight.numel() / 1e6:.1f} M parameters more"


def set_biases(attention: nn.Module, biased: Container[str]) -> None:
    """New projections, which have a bias where `biased` has their name."""
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        old = getattr(attention, name)
        setattr(attention, name, nn.Linear(old.in_features, old.out_features, name in biased))


@dataclass(frozen=True)
class ReadingCheckpoint(Checkpoint):
    """Of a draft that reads hidden states of `target`: the tokenizer, and what it says of texts, are the target's.

    kept: the target's ids that it proposes, all where there are none.
    """

    target: Checkpoint
    kept: tuple[int, ...] = field(default=(), kw_only=True)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.target.tokenizer

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self.target.stop_token_ids

    @cached_property
    def defaults(self) -> Defaults:
        return self.target.defaults

    @property
    def kept_tokens(self) -> NDArray[np.int64] | None:
        return np.array(self.kept, np.int64) if self.kept else None

    @property
    def max_positions(self) -> int | None:
        return self.target.max_positions

    @property
    def loaded_beside(self) -> int:
        return self.target.fp32_bytes // ELEMENT_BYTES["fp32"]


@dataclass
class HiddenDraftOutput:
    """logits `[1, R, m]` and feedback `[1, R, H]` of the rows of `logits_to_keep`. The latter is what the row after
    each reads where that is drafted.
    """

    logits: Tensor
    feedback: Tensor
    past_key_values: Cache | None = None


class HiddenDraft(PreTrainedModel):  # type: ignore[misc]
    """A draft as a causal language model over the tokens after its rows; subclasses are the kinds.

    taps: which hidden states of the target it reads, as `hidden_states[i]` of transformers, what layer i reads; `LAST`
    for what the output embedding reads. tap_width: the columns of each, the target's width. target_ids: `[m] int64`,
    the target's id of each of its own, None where they are the same. embed_tokens, lm_head: its own, or copies of the
    target's. fusing: names of the parameters that only `fuse` reads, which are not quantized: once a round, they are a
    small part of what a pass of the target reads. form: how it reads, where drafts of its kind differ in that. caches:
    which of the target's layers it attends to, of a draft without keys and values of its own. windows: how many rows
    its layers see, 0 for all.
    """

    kind: HiddenDraftKind
    taps: tuple[int, ...]
    tap_width: int
    target_ids: Tensor | None = None
    embed_tokens: nn.Embedding
    lm_head: nn.Linear
    fusing: tuple[str, ...] = ()
    form: Any = None
    caches: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    watching: ClassVar[dict[str, Any]] = {"output_hidden_states": True, "use_cache": False}  # passes of the target
    _supports_sdpa = True
    _supports_attention_backend = True

    @property
    def row_width(self) -> int:
        """H, of what a row reads."""
        return int(self.config.get_text_config().hidden_size)

    def fuse(self, hidden: Tensor) -> Tensor:
        """`[1, T, F]`, the taps side by side in their order, to what a row reads `[1, T, H]`."""
        return hidden

    def run(self, embedded: Tensor, hidden: Tensor, **attention: Any) -> tuple[Tensor, Tensor]:
        """`(what the output embedding reads, feedback)`, `[1, T, H]` each.

        embedded, hidden: `[1, T, H]`, of the tokens after the rows and what `fuse` gives, or the feedback. attention:
        `position_ids [1, T]` and `past_key_values`, as the layers of transformers take them, and `mask`, which gives
        theirs for a window in rows, 0 for none.
        """
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,
        hidden: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        logits_to_keep: RowsToKeep = 0,
        **_: Any,
    ) -> HiddenDraftOutput:
        """input_ids `[1, T]`: the tokens after the rows. hidden `[1, T, H]`: as `fuse` gives it; by default of the
        target's own hidden states (`read_target`), which needs the sequence from its beginning.
        """
        embedded = self.embed_tokens(input_ids)
        if hidden is None:
            hidden = self.fuse(self.read_target(input_ids).to(embedded.dtype))
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache(config=self.config)
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        if position_ids is None:
            position_ids = (start + torch.arange(input_ids.shape[1]))[None]
        causal: dict[str, Any] = dict(config=self.config, inputs_embeds=embedded, attention_mask=None)
        causal |= {"position_ids": position_ids, CACHE: past_key_values}

        def mask(window: int) -> Any:
            return create_causal_mask(**causal, and_mask_function=sliding_window_overlay(window) if window else None)

        attention = dict(mask=mask, position_ids=position_ids, past_key_values=past_key_values)
        read, feedback = self.run(embedded, hidden.to(embedded.dtype), **attention)
        kept = kept_rows(read, logits_to_keep)
        # Of one value, one Slice: two would be merged, and the graph's output would lose its shape.
        feedback = kept if feedback is read else kept_rows(feedback, logits_to_keep)
        return HiddenDraftOutput(self.lm_head(kept), feedback, past_key_values)

    def read_as(self, form: Any) -> None:
        """As in this form, with the same weights."""
        self.form = form

    def follow(self, target: PreTrainedModel) -> None:
        """Read `target`, which is no part of this model, where a pass is given no hidden states."""
        self.__dict__["_target"] = target
        self._known: dict[bytes, Tensor] = {}  # by the tokens of a text; at most `KEPT` bytes

    def read_target(self, input_ids: Tensor) -> Tensor:
        """`[B, T, F]`: the target's hidden states at the tokens before each of `input_ids [B, T]`.

        The first of them has the token 0 before it: any would do for a proof. Some are kept: calibration reads its
        texts several times, at last padded to one length (`gptq.together`); after a kept text, padding has states of 0.
        """
        if len(input_ids) > 1:
            return torch.cat([self._padded(row) for row in input_ids[:, None]])
        known = self._known.get(input_ids.numpy().tobytes())
        if known is not None:
            return known
        return self._keep(input_ids, self.tap_target(_before(input_ids)))

    def tap_target(self, tokens: Tensor) -> Tensor:
        """`[1, T, F]`: what is read of the target after `tokens [1, T]`."""
        target = self.__dict__["_target"]
        with torch.no_grad():
            return self.tapped_of(target(input_ids=tokens, **self.watching, **last_logits(target)))

    def tapped_of(self, output: Any) -> Tensor:
        """The same of a pass with `watching`."""
        return torch.cat([output.hidden_states[tap] for tap in self.taps], -1)

    def watch_target(self, input_ids: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """All hidden states, by tap, and logits of the target at the tokens before each of `input_ids [1, T]`.

        `read_target` then has what it needs of them.
        """
        with torch.no_grad():
            output = self.__dict__["_target"](input_ids=_before(input_ids), **self.watching)
        self._keep(input_ids, self.tapped_of(output))
        return output.hidden_states, output.logits

    def _keep(self, input_ids: Tensor, states: Tensor) -> Tensor:
        if states.nbytes + sum(one.nbytes for one in self._known.values()) <= KEPT:
            self._known[input_ids.numpy().tobytes()] = states
        return states

    def _padded(self, row: Tensor) -> Tensor:
        tokens = row.numpy().tobytes()
        texts = [text for text in self._known if tokens.startswith(text) and not any(tokens[len(text) :])]
        if not texts:
            return self.read_target(row)
        states = self._known[max(texts, key=len)]
        return nn.functional.pad(states, (0, 0, 0, row.shape[1] - states.shape[1]))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


def kept_rows(rows: Tensor, keep: RowsToKeep) -> Tensor:
    """Those of `rows [1, T, H]`."""
    if callable(keep):
        return keep(rows)
    return rows[:, slice(-keep, None) if isinstance(keep, int) else keep]


def _before(input_ids: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(input_ids[:, :1]), input_ids[:, :-1]], 1)


def tapped(target: PreTrainedModel, tokens: Tensor, taps: Sequence[int]) -> Tensor:
    """`[B, T, F]`: hidden states of `tokens [B, T]` at `taps`, side by side.

    `hidden_states[N]` of transformers, N the number of layers, is after the last norm, as `LAST` is.
    """
    states = hidden_states(target, tokens)
    return torch.cat([states[tap] for tap in taps], -1)


def hidden_states(target: PreTrainedModel, tokens: Tensor) -> tuple[Tensor, ...]:
    """By tap, `[B, T, D]` each, as transformers tells them."""
    with torch.no_grad():
        output = target(input_ids=tokens, output_hidden_states=True, use_cache=False, **last_logits(target))
    states: tuple[Tensor, ...] = output.hidden_states
    return states


def last_logits(model: PreTrainedModel) -> dict[str, int]:
    """The option by which a pass that is run for something else computes no more logits than it must."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def cut_head(draft: HiddenDraft, ids: Iterable[int]) -> None:
    """Keep only these rows of the output embedding, which is the target's. In place.

    On a CPU, the output embedding is most of what an MTP layer reads. What a draft cannot propose has probability 0 in
    its distribution, and the rules stay as they are.
    """
    kept = torch.tensor(list(ids))
    draft.lm_head, draft.target_ids = _rows(draft.lm_head, kept), kept


def _rows(linear: nn.Linear, kept: Tensor) -> nn.Linear:
    weight = linear.weight.data[kept]
    cut = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None, device="meta")
    cut.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        cut.bias = nn.Parameter(linear.bias.data[kept], requires_grad=False)
    return cut
