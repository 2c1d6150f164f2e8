"""The draft that is tuned: an existing checkpoint, or a new one for the target's tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...bundle import Bundle
from ...bundle.output import new_folder
from ...errors import CheckpointError, OutputError, PairError, ParameterError
from ..checkpoints.chat_templates import DEFAULT, TOOL_USE
from ..checkpoints.find import find_checkpoint
from ..checkpoints.pair import tokenizer_differences
from ..checkpoints.source import is_gguf
from .options import Shape

# Up to this many weights a draft learns as the demo draft did (examples/train_demo_pair.py); larger ones are mostly
# whole models, of which a small step keeps what they know.
SMALL = 50_000_000
# On the learning rates of a small draft that is trained already: at those of a new one it forgets more of other text
# (docs/internals/log.md).
TUNED_RATE = 0.3


@dataclass(frozen=True)
class Draft:
    """model: in fp32. dtype: of its checkpoint. source: what it was made from, for messages. rate: factor on the
    learning rates of its size.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype
    source: str
    rate: float = 1.0


def load_draft(bundle: Bundle, source: str) -> Draft:
    """The checkpoint `source`: a folder or a hub id.

    Raises `CheckpointError` for one that cannot be tuned, `PairError` for one with other tokens than the target.
    """
    checkpoint = None if is_gguf(source) else find_checkpoint(source)
    if checkpoint is None or getattr(checkpoint.config, "quantization_config", None) is not None:
        raise CheckpointError(f"{source} is quantized; give --draft the checkpoint that it was made from")
    ours = json.loads(bundle.path(bundle.manifest.text.tokenizer).read_text(encoding="utf-8"))
    theirs = json.loads(checkpoint.tokenizer.backend_tokenizer.to_str())
    difference = next(tokenizer_differences(ours, theirs), None)
    if difference is not None:
        raise PairError(
            f"{source} has a different tokenizer than the target ({difference}) and cannot learn its tokens; "
            "give a draft of the target's family, or --fresh LAYERSxWIDTH"
        )
    dtype = getattr(checkpoint.config, "dtype", None)
    model = checkpoint.load("fp32")
    return Draft(
        model,
        checkpoint.tokenizer,
        dtype if isinstance(dtype, torch.dtype) else torch.float32,
        source,
        TUNED_RATE if model.num_parameters() <= SMALL else 1.0,
    )


def new_draft(bundle: Bundle, shape: Shape) -> Draft:
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
    source = f"--fresh {shape.layers}x{shape.width}"
    if weights >= manifest.target.num_parameters:
        raise ParameterError(
            f"{source} makes a draft of {weights / 1e6:.1f} M weights, but the target has "
            f"{manifest.target.num_parameters / 1e6:.1f} M; give fewer layers or a smaller width",
            "fresh",
        )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return Draft(model.eval(), tokenizer, torch.float32, source)


def _heads(width: int) -> int:
    """About one for 64 of the width, a multiple of 32, each of a size that is a multiple of 8."""
    return next(heads for heads in range(max(1, width // 64), 0, -1) if width % (8 * heads) == 0)


def save_draft(draft: Draft, output: Path) -> None:
    """An ordinary checkpoint, in the precision that the draft's had; complete or not there. Raises `OutputError`."""
    with new_folder(output, None) as folder:
        try:
            draft.model.to("cpu", draft.dtype).save_pretrained(folder)
            draft.tokenizer.save_pretrained(folder)
        except SafetensorError as error:  # the weights do not fit on the disk
            raise OutputError(f"{output} cannot be written: {error}; the answers are kept") from None
        for path in folder.glob("*.safetensors"):  # written for the owner alone, whatever the umask says
            path.chmod((folder / "config.json").stat().st_mode)
