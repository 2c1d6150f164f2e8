"""The draft that is tuned: an existing checkpoint, or a new one for the target's tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...bundle import Bundle
from ...errors import CheckpointError, PairError, ParameterError
from ..checkpoints.chat_templates import DEFAULT, TOOL_USE
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.find import find_checkpoint
from ..checkpoints.pair import tokenizer_differences
from ..checkpoints.source import find_local, is_gguf
from .options import SMALL, Shape

# Of a small draft that is tuned: at the rates of a new one it forgets more of other text (docs/internals/log.md).
TUNED_RATE = 0.3


@dataclass(frozen=True)
class Draft:
    """model: in fp32. dtype: that its checkpoint has. source: what it was made from, for messages. rate: multiplies
    the learning rates of its size.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype
    source: str
    rate: float = 1.0


def find_draft(bundle: Bundle, given: str | None) -> Checkpoint:
    """The checkpoint `given`, else the one that the bundle's draft was built from.

    Raises `ParameterError` where neither is there, `PairError` and `CheckpointError` for one that cannot be tuned.
    """
    recorded = bundle.manifest.pair.get("draft")
    if given is None and recorded is None:
        raise ParameterError(
            "the bundle has no draft; give one with --draft CHECKPOINT, or --fresh LAYERSxWIDTH", "draft"
        )
    source = given if given is not None else recorded.source  # type: ignore[union-attr]
    if is_gguf(source):
        raise CheckpointError(f"{source} is quantized; give --draft the checkpoint that it was made from")
    try:
        # The name of a folder alone is not looked up on the hub.
        if given is None and "/" not in source and find_local(source) is None:
            raise CheckpointError(f"there is no folder {source}")
        found = find_checkpoint(source)
    except CheckpointError as error:
        if given is not None:
            raise
        raise ParameterError(
            f"the bundle's draft was built from {source}, which is not here ({error}); give it with --draft", "draft"
        ) from None
    if given is None and recorded is not None and found.digest != recorded.checkpoint_sha256:
        raise ParameterError(
            f"{source} is no longer what the bundle's draft was built from; name it with --draft", "draft"
        )
    if getattr(found.config, "quantization_config", None) is not None:
        raise CheckpointError(f"{source} is quantized; give --draft the checkpoint that it was made from")
    difference = next(tokenizer_differences(_tokenizer(bundle), _parsed(found.tokenizer)), None)
    if difference is not None:
        raise PairError(
            f"{source} has a different tokenizer than the target ({difference}) and cannot learn its tokens; "
            "give a draft of the target's family, or --fresh LAYERSxWIDTH"
        )
    return found


def load_draft(found: Checkpoint) -> Draft:
    """Raises `CheckpointError`."""
    dtype = getattr(found.config, "dtype", None)
    kept = dtype if isinstance(dtype, torch.dtype) else torch.float32
    model = found.load("fp32")
    return Draft(model, found.tokenizer, kept, found.source, TUNED_RATE if model.num_parameters() <= SMALL else 1.0)


def new_draft(bundle: Bundle, shape: Shape, seed: int) -> Draft:
    """A Llama with random weights. Raises `ParameterError` for one that is no smaller than the target."""
    manifest = bundle.manifest
    stops, special = list(manifest.text.stop_token_ids), manifest.text.special_tokens
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(bundle.path(manifest.text.tokenizer)), **special)
    paths = {DEFAULT: manifest.text.chat_template, TOOL_USE: manifest.text.tools_template}
    templates = {name: bundle.path(path).read_text(encoding="utf-8") for name, path in paths.items() if path}
    if templates:
        tokenizer.chat_template = templates[DEFAULT] if [*templates] == [DEFAULT] else templates
    heads = _heads(shape.width)
    config = LlamaConfig(
        vocab_size=manifest.target.vocab_size,
        hidden_size=shape.width,
        intermediate_size=-(-shape.width * 8 // 3 // 64) * 64,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2) if heads % 2 == 0 else heads,
        max_position_embeddings=manifest.contract.capacity,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=stops if len(stops) != 1 else stops[0],
        pad_token_id=None,
    )
    with torch.device("meta"):  # counted without memory
        weights = LlamaForCausalLM(config).num_parameters()
    if weights >= manifest.target.num_parameters:
        raise ParameterError(
            f"--fresh {shape.layers}x{shape.width} makes a draft of {weights / 1e6:.1f} M weights, but the target has "
            f"{manifest.target.num_parameters / 1e6:.1f} M; give fewer layers or a smaller width",
            "fresh",
        )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.eval()
    source = f"--fresh {shape.layers}x{shape.width}"
    return Draft(model, tokenizer, torch.float32, source)


def _heads(width: int) -> int:
    """About one for 64 of the width, a multiple of 32, each of a size that is a multiple of 8."""
    return next(heads for heads in range(max(1, width // 64), 0, -1) if width % (8 * heads) == 0)


def save_draft(draft: Draft, folder: Path) -> None:
    """An ordinary checkpoint, in the precision that the draft's had."""
    draft.model.to(draft.dtype).save_pretrained(folder)
    draft.tokenizer.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):  # written for the owner alone, whatever the umask says
        path.chmod((folder / "config.json").stat().st_mode)
    draft.model.float()


def round_off(draft: Draft) -> None:
    """The model as it will be read from its checkpoint, so that this is what is judged."""
    draft.model.to(draft.dtype).float()


def _tokenizer(bundle: Bundle) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(bundle.path(bundle.manifest.text.tokenizer).read_text(encoding="utf-8"))
    return parsed


def _parsed(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return parsed
