"""An EAGLE-3 head: made for the target or read, the target's hidden states that it learns from, and the checkpoint.

The states of all answers are computed once and kept in a file meanwhile: a pass of the target costs several times one
of the head.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from ...bundle import LAST, Bundle
from ...calibration.measuring.prompts import Progress
from ...errors import OutputError, PairError, UnsupportedModelError
from ...runtime.hub import name_of
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.find import find_checkpoint
from ..hidden_drafts.base import tapped
from ..hidden_drafts.checkpoint import EMBEDDING, HiddenDraftCheckpoint, find_draft
from ..hidden_drafts.eagle3 import Eagle3Draft, Eagle3Form
from ..hidden_drafts.fit import IDS, LAYER, made_for
from ..hidden_drafts.formats import SLIDING
from ..hidden_drafts.keys import LAYERS
from ..hidden_drafts.vocabulary import most_frequent
from .answers import Answer
from .drafts import check_tokenizer, checkpoint_folder, wrong_kind
from .options import TuneOptions
from .train import AT_ONCE, autocast, in_batches

# What transformers' families call a cap or a factor on the logits, which the output layer alone does not tell.
AFTER_OUTPUT = re.compile(r"(final_)?logits?_(soft|scal|mup)|(lm_head|output)_multiplier")
VOCABULARY = 32_768
# On the learning rates of small drafts: of a new head, and of one that is trained further.
NEW_RATE, TUNED_RATE = 2.0, 0.6


@dataclass(frozen=True)
class Head:
    """model: in fp32; its embedding and output layer, mostly the target's, are not trained. made_for: the name of its
    target. source: what it is, for messages. own: whether the embedding is not the target's. rate: factor on the
    learning rates.
    """

    model: Eagle3Draft
    target: PreTrainedModel
    made_for: str
    source: str
    own: bool
    rate: float

    @property
    def taps(self) -> list[int]:
        """As indices of `hidden_states`, with what the output layer reads last."""
        return [*self.model.taps, LAST]


@dataclass(frozen=True)
class Lesson(Answer):
    """states `[n - 1, (A + 1) D]` bf16: at all tokens but the last, of the taps and of what the output layer reads."""

    states: Tensor


def find_target(bundle: Bundle, target: str, draft: str | None) -> tuple[Checkpoint, HiddenDraftCheckpoint | None]:
    """The bundle's target as a checkpoint, and the head to go on with.

    Raises `CheckpointError`, `UnsupportedModelError`, and `PairError` for another target than the bundle's.
    """
    found = find_checkpoint(target)
    stated = found.config.get_text_config().to_dict()
    if changed := [key for key in stated if AFTER_OUTPUT.match(key) and stated[key] not in (None, 0, 1)]:
        raise UnsupportedModelError(
            f"{target} changes its logits after the output layer ({changed[0]} is {stated[changed[0]]}), which a head "
            "is not trained with here; train a draft of its own: --kind model",
            "target",
        )
    check_tokenizer(bundle, found, "of the bundle; give --target the checkpoint that it was built from")
    if found.digest != bundle.manifest.target.checkpoint_sha256:
        raise PairError(
            f"{target} is not the checkpoint that the bundle was built from, so the head would read other hidden "
            "states; give that one",
            "target",
        )
    if draft is None:
        return found, None
    head = find_draft(draft, found)
    if not isinstance(head, HiddenDraftCheckpoint) or head.kind != "eagle3":
        raise wrong_kind(draft, head.kind)
    return found, head


def open_head(
    target: Checkpoint, draft: HiddenDraftCheckpoint | None, answers: Sequence[Answer], options: TuneOptions
) -> Head:
    """`draft`, or a new one whose tokens are the most frequent ones of `answers`."""
    if draft is None:
        model = target.load("fp32")
        made = new_head(target, model, answers, options)
        return Head(made, model, name_of(target.source), f"a new head for {target.source}", False, NEW_RATE)
    made, _ = draft.load_noted("fp32")
    trained_with = made_for(draft.published.config)[0] or name_of(target.source)
    return Head(
        made, made.__dict__["_target"], trained_with, draft.source, EMBEDDING in draft.published.tensors, TUNED_RATE
    )


def new_head(
    target: Checkpoint, model: PreTrainedModel, answers: Sequence[Answer], options: TuneOptions
) -> Eagle3Draft:
    """EAGLE-3.1's form, as wide as the target: a layer of the target's shape, at random, and its tables."""
    text = target.config.get_text_config()
    heads, vocabulary = text.num_attention_heads, model.get_input_embeddings().weight.shape[0]
    rope = getattr(text, "rope_parameters", None) or {}
    config = LlamaConfig(
        hidden_size=text.hidden_size,
        intermediate_size=options.inner or getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocab_size=vocabulary,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=getattr(text, "rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", 10_000.0)},
        tie_word_embeddings=False,
    )
    tokens = (token for one in answers for token in (*one.prompt, *one.tokens))
    kept = torch.tensor(most_frequent(tokens, options.vocabulary or VOCABULARY, target.stop_token_ids, vocabulary))
    count = text.num_hidden_layers
    taps = tuple(sorted({min(max(tap, 0), count - 1) for tap in (2, count // 2, count - 3)}))
    head = Eagle3Draft(config, Eagle3Form(taps, text.hidden_size, len(kept), "post", fc_norm=True))
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    head.embed_tokens.weight.data.copy_(model.get_input_embeddings().weight.detach())
    head.lm_head.weight.data.copy_(model.get_output_embeddings().weight.detach()[kept])
    head.target_ids = kept
    head.eval()
    return head


def read_states(head: Head, answers: Sequence[Answer], place: Path, progress: Progress) -> list[Lesson]:
    """The answers with the target's hidden states, in their order. place: folder of the file that has them, which is
    without a name from the start: the system removes it with the last lesson, or with the process.

    Raises `OutputError` for a full disk.
    """
    rows = [len(one) - 1 for one in answers]
    width = len(head.taps) * head.model.tap_width
    count = sum(rows) * width
    try:
        place.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=place, prefix=".states-") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * count)  # a disk that fills up later would kill the process
            kept = torch.from_file(file.name, shared=True, size=count, dtype=torch.bfloat16)
    except OSError as error:
        raise OutputError(
            f"{2 * count / 1e6:,.0f} MB of hidden states cannot be written to {place}: {error.strerror}; "
            "free some space, or give fewer prompts; the answers are kept"
        ) from None
    lessons = [
        Lesson(**vars(one), states=its)
        for one, its in zip(answers, torch.split(kept.view(-1, width), rows), strict=True)
    ]
    fill(head, lessons, progress)
    return lessons


def fill(head: Head, lessons: Sequence[Lesson], progress: Progress) -> None:
    batches, device = in_batches(lessons, AT_ONCE), head.target.device
    for number, batch in enumerate(batches):
        progress(number, len(batches))
        tokens = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor([*one.prompt, *one.tokens][:-1]) for one in batch], batch_first=True
        ).to(device)
        with autocast(device):
            states = tapped(head.target, tokens, head.taps)
        for one, its in zip(batch, states, strict=True):
            one.states.copy_(its[: len(one) - 1])
    progress(len(batches), len(batches))


def save_head(head: Head, output: Path) -> None:
    """In speculators' format and fp16, without the target's embedding; complete or not there. Raises `OutputError`."""
    model = head.model.to("cpu")
    left_out = () if head.own else (EMBEDDING,)
    tensors = {name: value.half().contiguous() for name, value in model.state_dict().items() if name not in left_out}
    size, vocabulary = model.form.draft_vocab, model.config.vocab_size
    if model.target_ids is not None:
        tensors["d2t"] = model.target_ids - torch.arange(size)
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, model.target_ids, True)
    with checkpoint_folder(output) as folder:
        (folder / "config.json").write_text(json.dumps(_config(head), indent=2) + "\n", encoding="utf-8")
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _config(head: Head) -> dict[str, Any]:
    model, form = head.model, head.model.form
    layers = head.target.config.get_text_config().num_hidden_layers
    beside = {"rope_parameters": model.config.rope_parameters, "model_type": model.config.model_type}
    if form.windows:
        kinds = [SLIDING if window else "full_attention" for window in form.windows]
        beside |= dict(layer_types=kinds, sliding_window=max(form.windows), use_sliding_window=True)
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "dtype": "float16",
        "draft_vocab_size": form.draft_vocab,
        IDS: [layers if tap == LAST else tap for tap in form.taps],
        "norm_before_residual": form.norm_before_residual,
        "norm_before_fc": form.norm_before_fc,
        "fc_norm": form.fc_norm,
        "norm_output": form.feedback == "post",
        "embed_requires_grad": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        LAYER: {**{name: getattr(model.config, name) for name in sorted(LAYERS)}, **beside},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": head.made_for, "architectures": [type(head.target).__name__]},
        },
    }
