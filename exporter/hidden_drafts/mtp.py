"""The layer for multi-token prediction that a checkpoint has besides the layers of its model (DeepSeek-V3, arXiv
2412.19437, section 2.2). It predicts one token; a draft recycles it for each further one.

Its block is a decoder of the target's own family with the block's layers alone, most often one: positions, masks and
norms are transformers' code, and no family has code here.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from ...bundle import LAST, Precision
from ..checkpoints.checkpoint import Checkpoint, for_inference
from ..checkpoints.config import keeps_states
from ..checkpoints.gguf import GgufCheckpoint
from ..checkpoints.half_precision import TORCH_DTYPES
from ..checkpoints.source import first_line, read_headers, read_tensor
from .base import CACHE, HiddenDraft, ReadingCheckpoint, copied, cut_head
from .mtp_tensors import Stored, find_stored, of_gguf, refused, several


class Mtp(HiddenDraft):
    """o = norm(block(eh_proj([enorm(E[x]); hnorm(h)]))), h the target's hidden states after its last norm. The target's
    head reads o, and so does the row after. decoder: the block and the norm.
    """

    kind = "mtp"
    taps = (LAST,)

    def __init__(
        self, decoder: PreTrainedModel, embed_tokens: nn.Embedding, lm_head: nn.Linear, hidden_first: bool
    ) -> None:
        super().__init__(decoder.config)
        norm = getattr(decoder, norm_name(decoder))
        width = int(norm.weight.shape[0])
        self.tap_width = width
        self.enorm, self.hnorm = copy.deepcopy(norm), copy.deepcopy(norm)
        self.eh_proj = nn.Linear(2 * width, width, bias=False, dtype=norm.weight.dtype)
        self.decoder = decoder
        self.embed_tokens, self.lm_head = copy.deepcopy((embed_tokens, lm_head))  # at once: they may be tied
        self.hidden_first = hidden_first

    def run(self, embedded: Tensor, hidden: Tensor, **attention: Any) -> tuple[Tensor, Tensor]:
        halves = [self.enorm(embedded), self.hnorm(hidden)]
        joined = self.eh_proj(torch.cat(halves[::-1] if self.hidden_first else halves, -1))
        cache = attention["past_key_values"]
        options = {CACHE: cache, "use_cache": cache is not None}
        places = attention["position_ids"]
        output: Tensor = self.decoder(inputs_embeds=joined, position_ids=places, **options).last_hidden_state
        return output, output


def norm_name(decoder: PreTrainedModel) -> str:
    """Of the norm after a decoder's layers."""
    names: list[str] = [name for name, module in decoder.named_children() if "norm" in type(module).__name__.lower()]
    return names[0]


@dataclass(frozen=True)
class MtpCheckpoint(ReadingCheckpoint):
    """The MTP layer of `target` as a checkpoint, with the embedding and the head of the target."""

    stored: Stored

    kind = "mtp"

    @property
    def taps(self) -> tuple[int, ...]:
        return Mtp.taps

    @property
    def warnings(self) -> tuple[str, ...]:
        return ()  # the target has them already

    @cached_property
    def config(self) -> Any:
        return block_config(self.target.config, self.stored.dense)

    @property
    def architecture(self) -> str:
        return self.target.architecture

    @cached_property
    def fp32_bytes(self) -> int:
        rows = self.vocab_size + (len(self.kept) if self.kept or self.config.tie_word_embeddings else self.vocab_size)
        return 4 * (self.stored.elements + rows * int(self.config.hidden_size))

    def own_parameters(self, model: PreTrainedModel) -> int:
        return self.stored.elements

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.target.digest} mtp {self.kept}".encode()).hexdigest()

    def load_noted(self, precision: Precision) -> tuple[PreTrainedModel, tuple[str, ...]]:
        """The layer, which follows the target; and notes of what they share."""
        target = self.target.load(precision)
        decoder, stored = load_decoder(self.target, self.stored, TORCH_DTYPES[precision]), self.stored
        model = Mtp(decoder, target.get_input_embeddings(), target.get_output_embeddings(), stored.hidden_first)
        for part in ("enorm", "hnorm", "eh_proj"):
            name = stored.parts[part]
            getattr(model, part).weight.data.copy_(read_tensor(stored.files[name], name))
        if self.kept:
            cut_head(model, self.kept)
        model.follow(target)
        embedding, head = model.embed_tokens.weight, model.lm_head.weight
        notes = [copied("embedding", embedding)]
        notes += [copied("output embedding", head)] if head is not embedding else []
        return for_inference(self.source, model, {"missing_keys": ()}), tuple(notes)


def mtp_checkpoint(target: Checkpoint) -> MtpCheckpoint:
    """Raises `CheckpointError` where the target has no MTP layer, or one that is no such draft."""
    stored = _find(target)
    load_decoder(target, stored, torch.bfloat16)  # one that does not fit is refused before the target is exported
    return MtpCheckpoint(f"{target.source} mtp", target.folder, target, stored)


def _find(target: Checkpoint) -> Stored:
    if isinstance(target, GgufCheckpoint):
        raise of_gguf(target.source)
    text = target.config.get_text_config()
    stored = find_stored(target.source, read_headers(target.weights), text.num_hidden_layers, text.hidden_size)
    types = block_types(target.config)
    if keeps_states(block_config(target.config)):
        raise refused(f"the MTP layer of {target.source} keeps states ({', '.join(types)}); expected attention alone")
    if stored.layers > len(types):
        raise several(target.source, stored.layers // len(types))
    return stored


def block_types(config: Any) -> list[str]:
    """What the block's layers are, by default one as the last of the model's with full attention."""
    text = config.get_text_config()
    types = getattr(text, "layer_types", None) or [""] * text.num_hidden_layers
    said = getattr(text, "mtp_layers_block_type", None) or getattr(text, "mtp_layer_types", None)
    return list(said or [types[_last(types)]])


def block_config(config: Any, dense: bool = False) -> Any:
    """The config of a model that has the block's layers alone. dense: whether they have no experts."""
    text, types = copy.deepcopy(config.get_text_config()), block_types(config)
    count = text.num_hidden_layers
    last = _last(getattr(text, "layer_types", None) or [""] * count, types[0])
    for name, value in list(vars(text).items()):
        if "layer" in name and isinstance(value, list) and len(value) == count:
            setattr(text, name, [value[last]] * len(types))
    if getattr(text, "layer_types", None):
        text.layer_types = types
    text.num_hidden_layers = len(types)
    # The first layers of such a model may be dense; the block is as its tensors say.
    first = len(types) if dense else 0
    kinds = ["dense" if dense else "sparse"] * len(types)
    ends: dict[str, Any] = dict(first_k_dense_replace=first, moe_layer_start_index=first, mlp_layer_types=kinds)
    for name, value in {**ends, "mlp_only_layers": list(range(first))}.items():
        if hasattr(text, name):
            setattr(text, name, value)
    return text


def _last(types: list[str], kind: str = "full_attention") -> int:
    return max((index for index, one in enumerate(types) if one == kind), default=len(types) - 1)


def load_decoder(checkpoint: Checkpoint, stored: Stored, dtype: torch.dtype) -> PreTrainedModel:
    """The block and the norm after it, as a decoder of the target's family without an embedding."""
    layer, config = f"the MTP layer of {checkpoint.source}", block_config(checkpoint.config, stored.dense)
    # Its own embedding, which nothing reads, is small this way.
    size, padding, config.vocab_size, config.pad_token_id = config.vocab_size, config.pad_token_id, 1, None
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config).get_decoder()
    names = {**stored.block, f"{norm_name(empty)}.weight": stored.parts["norm"]}
    weights = {ours: read_tensor(stored.files[name], name) for ours, name in names.items()}
    options: dict[str, Any] = dict(config=config, state_dict=weights, dtype=dtype, output_loading_info=True)
    options |= dict(experts_implementation="batched_mm", ignore_mismatched_sizes=True)
    try:
        decoder, info = type(empty).from_pretrained(None, **options)
    except Exception as error:
        raise refused(f"{layer} cannot be loaded: {first_line(error)}") from None
    decoder.config.vocab_size, decoder.config.pad_token_id = size, padding
    embedding = decoder.get_input_embeddings().weight
    missing = sorted(set(info["missing_keys"]) - {name for name, it in decoder.named_parameters() if it is embedding})
    if missing:
        raise refused(f"{layer} lacks {missing[0]}, which its block reads; export or download the target again")
    if unexpected := sorted(info["unexpected_keys"]):
        raise refused(f"{layer} has {names.get(unexpected[0], unexpected[0])}, which its block has no place for")
    if mismatched := sorted(info["mismatched_keys"]):
        name, there, expected = mismatched[0]
        raise refused(f"{layer}: {names.get(name, name)} is {list(there)}; expected {list(expected)}")
    decoder.set_input_embeddings(None)
    return decoder
