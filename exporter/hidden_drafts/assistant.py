"""A draft that attends to the target's caches and has none of its own: the assistants of Gemma 4.

    u = pre_projection([E[x]; h])   E the target's embedding; h its hidden states after the last norm, or what goes back
    y = norm(layers(u))             queries alone; keys and values are those of the target's last layer of the same kind
    logits = lm_head(y)             what goes back is post_projection(y)

Row i reads (h_i, x_{i+1}) and sees the target's rows up to i. A drafted row sees no more than the last true one, and
stands where that does, as in vLLM and SGLang; in transformers one place further on, with one row more of a window.
Where a checkpoint has centroids, by which few of its tokens are scored, all are scored.
"""

from __future__ import annotations

import copy
import hashlib
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...bundle import LAST, CacheLayer, Precision
from ...errors import CheckpointError
from ..checkpoints.checkpoint import for_inference
from ..checkpoints.source import first_line
from .base import (
    CACHE,
    HiddenDraft,
    HiddenDraftOutput,
    ReadingCheckpoint,
    RowsToKeep,
    copied,
    cut_head,
    kept_rows,
)

KeyValue = tuple[Tensor, Tensor]
# The cache of each kind of layer, as transformers' models of Gemma 4 give and take them.
SHARED = "shared_kv_states"


class Assistant(HiddenDraft):
    """kinds: what the decoder calls each of `caches`; layers: their shapes, where heads may be wider than they are.

    What a row reads, `[T, F]` with F = tap_width + sizes of the rows, is here the hidden states and, where there is no
    cache, behind them keys and values of each layer.
    """

    kind = "assistant"
    taps = (LAST,)
    watching: ClassVar[dict[str, Any]] = {**HiddenDraft.watching, "return_shared_kv_states": True}

    def __init__(self, loaded: PreTrainedModel, target: PreTrainedModel) -> None:
        super().__init__(loaded.config.get_text_config())
        parts: Any = loaded
        self.decoder, self.lm_head = parts.model, parts.lm_head
        self.pre_projection, self.post_projection = parts.pre_projection, parts.post_projection
        self.tap_width = int(self.post_projection.out_features)
        self.embed_tokens = copy.deepcopy(target.get_input_embeddings())
        self.decoder.set_input_embeddings(None)
        self.kinds, self.caches, self.layers = shared(target, set(self.config.layer_types))
        self.windows = tuple(self.config.sliding_window if kind == "sliding_attention" else 0 for kind in self.kinds)
        self.head_dims = tuple(layer.head_dim for layer in self.layers)

    @property
    def row_width(self) -> int:
        return self.tap_width

    def forward(
        self,
        input_ids: Tensor,
        hidden: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        logits_to_keep: RowsToKeep = 0,
        **_: Any,
    ) -> HiddenDraftOutput:
        """As `HiddenDraft`; past_key_values: while it is traced, with `caches`."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        if past_key_values is not None:
            assert hidden is not None
            pairs = [past_key_values.past[index] for index in range(len(self.caches))]
            return self._run(input_ids, hidden, position_ids, pairs, dict.fromkeys(self.kinds), logits_to_keep)
        rows = self.read_target(input_ids) if hidden is None else hidden
        pairs, masks = self._seen(rows)
        return self._run(input_ids, rows[..., : self.tap_width], position_ids, pairs, masks, logits_to_keep)

    def drafted(self, token: Tensor, back: Tensor, rows: Tensor) -> HiddenDraftOutput:
        """After `token [1, 1]`, which was drafted. back `[1, 1, H]`: what the row before gave. rows `[1, T, F]`: all
        true ones.
        """
        pairs, masks = self._seen(rows)
        last = {kind: mask[:, :, -1:] for kind, mask in masks.items()}
        return self._run(token, back, torch.tensor([[rows.shape[1] - 1]]), pairs, last, 1)

    def tapped_of(self, output: Any) -> Tensor:
        shared = getattr(output, SHARED)
        halves = [half for kind in self.kinds for half in shared[kind]]
        widths = [layer.head_dim for layer in self.layers for _ in "kv"]
        rows = [
            nn.functional.pad(half, (0, width - half.shape[-1])).transpose(1, 2).flatten(2)
            for half, width in zip(halves, widths, strict=True)
        ]
        return torch.cat([output.hidden_states[LAST], *rows], -1)

    def _seen(self, rows: Tensor) -> tuple[list[KeyValue], dict[str, Tensor]]:
        """Keys and values `[B, H_kv, T, D]` by layer, and masks by kind, of `rows [B, T, F]`."""
        place, pairs, masks = torch.arange(rows.shape[1]), list[KeyValue](), dict[str, Tensor]()
        sizes = [layer.num_kv_heads * layer.head_dim for layer in self.layers for _ in "kv"]
        halves = iter(torch.split(rows[..., self.tap_width :], sizes, -1))
        for kind, layer, width, window in zip(self.kinds, self.layers, self.head_dims, self.windows, strict=True):
            heads = (*rows.shape[:2], layer.num_kv_heads, layer.head_dim)
            key, value = (next(halves).reshape(heads).transpose(1, 2)[..., :width] for _ in "kv")
            pairs.append((key, value))
            seen = place <= place[:, None]
            if window:
                seen = seen & (place > place[:, None] - window)
            hidden = torch.finfo(rows.dtype).min
            masks[kind] = torch.zeros(len(place), len(place), dtype=rows.dtype).masked_fill_(~seen, hidden)[None, None]
        return pairs, masks

    def _run(
        self,
        input_ids: Tensor,
        hidden: Tensor,
        position_ids: Tensor,
        pairs: list[KeyValue],
        masks: dict[str, Any],
        logits_to_keep: RowsToKeep,
    ) -> HiddenDraftOutput:
        embedded = self.embed_tokens(input_ids)
        joined = self.pre_projection(torch.cat([embedded, hidden.to(embedded.dtype)], -1))
        options: dict[str, Any] = {SHARED: dict(zip(self.kinds, pairs, strict=True)), "attention_mask": masks}
        options["logits_to_keep"] = position_ids  # a tensor: for a number, some of its layers would see the last rows
        states = self.decoder(inputs_embeds=joined, position_ids=position_ids, use_cache=False, **options)
        kept = kept_rows(states.last_hidden_state, logits_to_keep)
        return HiddenDraftOutput(self.lm_head(kept), self.post_projection(kept))


def shared(target: PreTrainedModel, kinds: set[str]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[CacheLayer, ...]]:
    """What layers of these kinds see: by kind the target's layer that gives its rows, and the shape of its cache.

    Raises `CheckpointError` where the target gives none.
    """
    with torch.no_grad():
        output = target(input_ids=torch.tensor([[2, 3]]), use_cache=True, return_shared_kv_states=True)
    given, found = getattr(output, SHARED, None) or {}, dict[str, tuple[int, CacheLayer]]()
    for index, layer in enumerate(getattr(getattr(output, CACHE, None), "layers", ())):
        for kind in kinds & set(given):
            key, value = given[kind]
            if layer.keys is not None and layer.keys.shape == key.shape and torch.equal(layer.keys, key):
                found[kind] = index, CacheLayer(int(key.shape[1]), int(max(key.shape[3], value.shape[3])))
    if missing := sorted(kinds - set(found)):
        raise CheckpointError(
            f"the target gives no rows for layers of {missing[0]}, which the draft reads; choose the draft made for "
            "this target",
            "draft",
        )
    ordered = sorted(found, key=lambda kind: found[kind][0])
    reads, layers = zip(*(found[kind] for kind in ordered), strict=True)
    return tuple(ordered), reads, layers


class AssistantCheckpoint(ReadingCheckpoint):
    kind = "assistant"

    @property
    def taps(self) -> tuple[int, ...]:
        return Assistant.taps

    @cached_property
    def fp32_bytes(self) -> int:
        """With the embedding of the target, which it has a copy of."""
        return super().fp32_bytes + 4 * self.target.vocab_size * int(self.config.backbone_hidden_size)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{super().digest} {self.target.digest} {self.kept}".encode()).hexdigest()

    def own_parameters(self, model: PreTrainedModel) -> int:
        assert isinstance(model, Assistant)
        return int(model.num_parameters()) - model.embed_tokens.weight.numel()

    def check(self) -> None:
        """Raises `CheckpointError` for a draft of another target."""
        theirs, text = self.config, self.target.config.get_text_config()
        for what, own, wanted in (
            ("width", theirs.backbone_hidden_size, text.hidden_size),
            ("vocabulary", self.vocab_size, self.target.vocab_size),
        ):
            if own != wanted:
                raise CheckpointError(
                    f"{self.source} is a draft for a target of {what} {own}; the target's is {wanted}: choose the "
                    "draft made for this target",
                    "draft",
                )

    def load_noted(self, precision: Precision) -> tuple[PreTrainedModel, tuple[str, ...]]:
        """The draft, which reads the target that is loaded with it; and notes of what they share."""
        loaded, notes = super().load_noted(precision)
        target = self.target.load(precision)
        try:
            model = Assistant(loaded, target)
            model.follow(target)
            with torch.no_grad():
                model(torch.tensor([[2, 3]]))  # heads of other sizes than the rows
        except (AttributeError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.source} cannot read the cache of {self.target.source}: {first_line(error)}; choose the draft "
                "made for this target",
                "draft",
            ) from None
        if self.kept:
            cut_head(model, self.kept)
        notes = (*notes, copied("embedding", model.embed_tokens.weight))
        return for_inference(self.source, model, {"missing_keys": ()}), notes
