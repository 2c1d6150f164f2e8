"""The draft that is tuned: a checkpoint with the target's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...bundle import Bundle, HiddenDraftKind
from ...bundle.output import new_folder
from ...errors import CheckpointError, OutputError, PairError, UnsupportedModelError
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.find import find_checkpoint
from ..checkpoints.pair import tokenizer_differences
from ..checkpoints.source import is_gguf
from ..hidden_drafts.folder import pickled_named, published
from ..hidden_drafts.mtp_tensors import is_mtp

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

    Raises `CheckpointError` for one that cannot be tuned, `UnsupportedModelError` for one that reads the target, and
    `PairError` for one with other tokens than the target.
    """
    if is_mtp(source):
        raise wrong_kind(source, "mtp")
    with pickled_named(source):
        checkpoint = None if is_gguf(source) else find_checkpoint(source)
    if checkpoint and (reader := published(source, checkpoint.folder)):
        raise wrong_kind(source, reader.kind)
    if checkpoint is None or getattr(checkpoint.config, "quantization_config", None) is not None:
        raise CheckpointError(f"{source} is quantized; give --draft the checkpoint that it was made from")
    check_tokenizer(bundle, checkpoint, "and cannot learn its tokens; give a draft of the target's family")
    dtype = getattr(checkpoint.config, "dtype", None)
    model = checkpoint.load("fp32")
    return Draft(
        model,
        checkpoint.tokenizer,
        dtype if isinstance(dtype, torch.dtype) else torch.float32,
        source,
        TUNED_RATE if model.num_parameters() <= SMALL else 1.0,
    )


def wrong_kind(source: str, kind: HiddenDraftKind | None) -> UnsupportedModelError:
    """kind: of the draft, None for a model of its own; another than --kind says."""
    if kind is None:
        what = "is no EAGLE-3 head; leave out --kind eagle3 and --target to tune it"
    elif kind == "eagle3":
        what = "is an EAGLE-3 head; give --kind eagle3 and --target to tune it"
    else:
        what = f"is a draft of kind {kind}, which is not tuned here; give a draft model or an EAGLE-3 head"
    return UnsupportedModelError(f"{source} {what}", "draft")


def check_tokenizer(bundle: Bundle, checkpoint: Checkpoint, remedy: str) -> None:
    """Raises `PairError` unless the checkpoint has the tokens of the bundle's target."""
    ours = json.loads(bundle.path(bundle.manifest.text.tokenizer).read_text(encoding="utf-8"))
    theirs = json.loads(checkpoint.tokenizer.backend_tokenizer.to_str())
    difference = next(tokenizer_differences(ours, theirs), None)
    if difference is not None:
        raise PairError(f"{checkpoint.source} has a different tokenizer than the target ({difference}) {remedy}")


def save_draft(draft: Draft, output: Path) -> None:
    """An ordinary checkpoint, in the precision that the draft's had; complete or not there. Raises `OutputError`."""
    with checkpoint_folder(output) as folder:
        draft.model.to("cpu", draft.dtype).save_pretrained(folder)
        draft.tokenizer.save_pretrained(folder)


@contextmanager
def checkpoint_folder(output: Path) -> Iterator[Path]:
    """A new folder, complete or not there. Raises `OutputError`."""
    with new_folder(output, None) as folder:
        try:
            yield folder
        except SafetensorError as error:  # the weights do not fit on the disk
            raise OutputError(f"{output} cannot be written: {error}; the answers are kept") from None
        for path in folder.glob("*.safetensors"):  # written for the owner alone, whatever the umask says
            path.chmod((folder / "config.json").stat().st_mode)
