"""An EAGLE-3, DFlash or DSpark draft as a checkpoint, beside its target's: checked, and loaded with what they share."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...bundle import WARNING, HiddenDraftKind, Precision
from ...errors import CheckpointError
from ..checkpoints.checkpoint import Checkpoint, for_inference
from ..checkpoints.find import find_checkpoint
from ..checkpoints.gguf import GgufCheckpoint
from ..checkpoints.half_precision import TORCH_DTYPES
from ..checkpoints.source import first_line, read_tensor
from ..free_memory import BASE, require_free
from ..weights.texts import read_texts
from .assistant import AssistantCheckpoint
from .base import HiddenDraft, ReadingCheckpoint, copied
from .block import BlockDraft, BlockForm
from .eagle3 import Eagle3Draft, Eagle3Form, turned
from .fit import Published, Said, Target, note_of_another
from .folder import pickled_named, published
from .formats import Description, absent_keys, describe
from .measured import acceptance, held_out, options, shares
from .mtp_tensors import is_mtp
from .vocabulary import TABLES, read_tables, read_target_ids

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
# Whose rows rotary embeddings turn.
TURNED = re.compile(r"\.(q|k)_(proj|norm)\.")
# What `BlockLayer` holds a second time.
CONTEXT = ".context."
# Of the target, which training reads.
LEFT_OUT = ("verifier_norm.weight", "verifier_lm_head.weight")


@dataclass(frozen=True)
class HiddenDraftCheckpoint(ReadingCheckpoint):
    """A local folder with `config.json` and safetensors weights.

    texts: what acceptance is measured on where it could be read in several ways, by default the built-in ones.
    """

    published: Published
    said: Said
    texts: tuple[str, ...] = ()

    @property
    def kind(self) -> HiddenDraftKind:
        return self.published.kind

    @property
    def taps(self) -> tuple[int, ...]:
        return self.form.taps

    @cached_property
    def description(self) -> Description:
        text = self.target.config.get_text_config()
        target = Target(text.num_hidden_layers, text.hidden_size, self.target.vocab_size)
        return describe(self.published, target, self.said)

    @property
    def form(self) -> Eagle3Form | BlockForm:
        """Raises `CheckpointError` where it could be several, and they fit alike."""
        return self._chosen[0]

    @cached_property
    def _chosen(self) -> tuple[Eagle3Form | BlockForm, tuple[str, ...]]:
        """The form, and a note where it was measured."""
        forms = [form for form in self.description.forms if isinstance(form, Eagle3Form)]
        if len(forms) < 2:
            return self.description.forms[0], ()
        remedy = "with --draft-taps and --draft-feedback, or on a larger host"
        needed = BASE + self.target.fp32_bytes + self.fp32_bytes
        require_free(needed, "measuring how the head is to be read, on the target in fp32,", remedy)
        model = self._filled(self.target.load("fp32"), torch.float32, forms[0])[0]
        assert isinstance(model, HiddenDraft)
        texts = held_out(self.tokenizer, self.texts or read_texts(None), self.vocab_size)
        found = acceptance(model, texts, forms)
        both = ", or ".join(f"{shares(kept)} with {options(form)}" for form, kept in zip(forms, found, strict=True))
        said = f"{self.source} can be read in {len(forms)} ways, and the target keeps this much of its tokens: {both}"
        means = [float(kept.mean()) for kept in found]
        form, *others = (form for form, mean in zip(forms, means, strict=True) if mean == max(means))
        if any((one.taps, one.feedback) != (form.taps, form.feedback) for one in others):
            raise CheckpointError(f"{said}; give --draft-taps (indices of hidden_states) and --draft-feedback", "draft")
        return form, (f"{said}; it is read with {options(form)}",)

    @cached_property
    def config(self) -> Any:
        return self.description.config

    @property
    def architecture(self) -> str:
        return type(self._empty()).__name__

    @cached_property
    def fp32_bytes(self) -> int:
        """With what it shares with the target."""
        return sum(4 * int(parameter.numel()) for parameter in self._empty().parameters())

    def own_parameters(self, model: PreTrainedModel) -> int:
        return sum(math.prod(self.published.shape(name)) for name in self._names(self._empty()))

    @cached_property
    def digest(self) -> str:
        """Of the target's too, whose embedding and hidden states it reads, and of how it is read."""
        return hashlib.sha256(f"{super().digest} {self.target.digest} {self.form}".encode()).hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        note = note_of_another(self.published, self.target.source, self.target.architecture)
        return (*note, *self._chosen[1])

    def check(self) -> None:
        """Raises `CheckpointError` for what `load` would refuse, before anything is loaded."""
        self._names(self._empty())
        _ = self.kept_tokens

    def load_noted(self, precision: Precision) -> tuple[PreTrainedModel, tuple[str, ...]]:
        """The draft, which reads the target that is loaded with it; and notes of what they share, and of keys that
        its config lacks.

        Raises `CheckpointError` for weights that are missing, unreadable, of another shape, or no part of the draft.
        """
        model, notes = self._filled(self.target.load(precision), TORCH_DTYPES[precision], self.form)
        target = self.target.config.get_text_config()
        absent = ", ".join(absent_keys(self.published, self.description, self.said, target))
        return model, (*notes, f"{WARNING}not in config.json, so by default: {absent}") if absent else notes

    def _filled(
        self, target: PreTrainedModel, dtype: torch.dtype, form: Eagle3Form | BlockForm
    ) -> tuple[PreTrainedModel, tuple[str, ...]]:
        model = self._empty(form)
        state = {name: read_tensor(*self.published.tensors[name][:2]).to(dtype) for name in self._names(model)}
        if self.description.neighbours:
            state |= {name: _apart(state[name], model.config.head_dim) for name in state if TURNED.search(name)}
        again = {name: name.replace(CONTEXT, ".self_attn.") for name in model.state_dict() if CONTEXT in name}
        state |= {name: state[own].clone() for name, own in again.items()}
        ids = None if self.kept_tokens is None else torch.from_numpy(self.kept_tokens)
        notes = []
        if EMBEDDING not in state:
            theirs = target.get_input_embeddings()
            state[EMBEDDING] = _copied(theirs.weight, None, dtype) * getattr(theirs, "embed_scale", 1)  # Gemma's
            notes.append(copied("embedding", state[EMBEDDING]))
        if HEAD not in state:
            state[HEAD] = _copied(target.get_output_embeddings().weight, ids, dtype)
            notes.append(copied("output embedding", state[HEAD]))
        model.load_state_dict(state, assign=True)
        model.target_ids = ids
        model.follow(target)
        return for_inference(self.source, model, {"missing_keys": ()}), tuple(notes)

    def _empty(self, form: Eagle3Form | BlockForm | None = None) -> Eagle3Draft | BlockDraft:
        """The draft without memory for its weights, whose shapes are the same in every form."""
        description = self.description
        form = form or description.forms[0]
        model: Eagle3Draft | BlockDraft
        try:
            with torch.device("meta"):
                if isinstance(form, BlockForm):
                    model = BlockDraft(description.config, form)
                else:
                    model = Eagle3Draft(turned(description.config, form), form)
            model.rotary_emb = type(model.rotary_emb)(model.config)
        except Exception as error:  # of values that transformers does not check, each of another type
            raise self._wrong(f"has a config.json that cannot be used: {first_line(error)}") from None
        return model

    def _names(self, model: Eagle3Draft | BlockDraft) -> list[str]:
        """Of the weights that are stored. Raises `CheckpointError` unless they are the model's, in its shapes."""
        ours = {name: list(value.shape) for name, value in model.state_dict().items() if CONTEXT not in name}
        names = [
            name
            for name in self.published.tensors
            if name not in (*TABLES, *LEFT_OUT) and not name.endswith("inv_freq")
        ]
        if other := sorted(set(names) - ours.keys()):
            raise self._wrong(
                f"has {len(other)} weights that the draft of config.json has no place for, the first is {other[0]}; "
                "expected the config that they were trained with"
            )
        shared = {
            name for name in (EMBEDDING, HEAD) if ours[name][1] == self.target.config.get_text_config().hidden_size
        }
        if missing := sorted(ours.keys() - {*names} - shared):
            raise self._wrong(f"lacks {len(missing)} weights of the draft of config.json, the first is {missing[0]}")
        for name in names:
            if (there := self.published.shape(name)) != ours[name]:
                raise self._wrong(f"has {name} of {there}; expected {ours[name]}, as config.json says")
        return names

    @cached_property
    def kept_tokens(self) -> NDArray[np.int64] | None:
        """Raises `CheckpointError` for tables that do not fit."""
        size, tables = self.description.forms[0].draft_vocab, read_tables(self.source, self.published.tensors)
        return read_target_ids(self.source, tables, size, self.vocab_size)

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.source} {what}; export or download it again", "draft")


def find_draft(source: str, target: Checkpoint, said: Said | None = None, texts: tuple[str, ...] = ()) -> Checkpoint:
    """The draft that `source` names, a checkpoint that reads the target's hidden states or one of its own.

    texts: as of `HiddenDraftCheckpoint`.
    `mtp` is the target's own layer, unless there is a folder of this name. Raises `CheckpointError` and `PairError`.
    """
    if is_mtp(source):
        from .mtp import mtp_checkpoint

        return mtp_checkpoint(target)
    with pickled_named(source):
        found = find_checkpoint(source)
    if isinstance(found, GgufCheckpoint):
        return found
    reader = published(source, found.folder)
    if reader is None:
        return found
    draft: AssistantCheckpoint | HiddenDraftCheckpoint
    if reader.kind == "assistant":
        draft = AssistantCheckpoint(source, found.folder, target)
    else:
        draft = HiddenDraftCheckpoint(source, found.folder, target, reader, said or Said(), texts)
    draft.check()
    return draft


def _apart(rows: Tensor, head_dim: int) -> Tensor:
    """Of each head the first of its pairs of neighbours, then the second: what is turned in halves thereafter."""
    return rows.view(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _copied(weight: Tensor, rows: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (weight if rows is None else weight[rows]).detach().to(dtype, copy=True)
