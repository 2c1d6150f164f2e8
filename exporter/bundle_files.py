"""A bundle's files other than graphs: the tokenizer with its chat templates, and maps between vocabularies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..bundle import SharedVocabulary, TextSpec
from ..errors import PairError
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.shared_vocabulary import Translation

MAPS = "tokenizer/shared_vocabulary.npz"
# The chat templates that a bundle has, as transformers chooses them by itself: the second for messages with tools.
DEFAULT, TOOL_USE = "default", "tool_use"


def write_text(target: Checkpoint, staging_dir: Path) -> TextSpec:
    """The tokenizer as the runtime reads it: `tokenizer.json`, and the chat templates where there are any."""
    folder = staging_dir / "tokenizer"
    folder.mkdir()
    tokenizer, templates = target.tokenizer, named_templates(target.tokenizer)
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    # Left over from training in some checkpoints; transformers resets both on every call.
    plain.no_truncation()
    plain.no_padding()
    # Not by its own save, which raises bare Exceptions when the disk is full.
    (folder / "tokenizer.json").write_text(plain.to_str(pretty=True), encoding="utf-8")

    def written(file: str, template: str | None) -> str | None:
        if template is None:
            return None
        (folder / file).write_text(template, encoding="utf-8")
        return f"{folder.name}/{file}"

    return TextSpec(
        tokenizer="tokenizer/tokenizer.json",
        chat_template=written("chat_template.jinja", templates.get(DEFAULT)),
        special_tokens={name: one for name, one in tokenizer.special_tokens_map.items() if isinstance(one, str)},
        stop_token_ids=target.stop_token_ids,
        tools_template=written("tools_template.jinja", templates.get(TOOL_USE)),
    )


def named_templates(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Jinja sources of the chat templates by name; a single one is the default."""
    templates = tokenizer.chat_template
    return dict(templates) if isinstance(templates, dict) else {DEFAULT: templates} if templates is not None else {}


def unused_templates(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Says which templates a bundle leaves out, and that there is none for messages; None where neither is so."""
    names = named_templates(tokenizer)
    left_out = [name for name in names if name not in (DEFAULT, TOOL_USE)]
    if not names or (DEFAULT in names and not left_out):
        return None
    note = f"of the chat templates {', '.join(names)}, "
    if left_out:
        note += f"{', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} left out"
    if DEFAULT not in names:
        note += f"{', and ' * bool(left_out)}none is called {DEFAULT}, which messages"
        note += f" without tools need; {TOOL_USE} is for messages with tools" if TOOL_USE in names else " need"
    return f"{note}; to use another one, load the bundle with --chat-template FILE"


def write_vocabulary(
    draft: Checkpoint,
    translation: Translation | None,
    target_size: int,
    draft_size: int,
    min_overlap: float,
    folder: Path,
) -> SharedVocabulary | None:
    """The map between the target's ids and those of a draft that has others, into the draft's `folder`. The sizes: of
    the logits, as they turned out to be.
    """
    if draft.kept_tokens is not None:  # it reads all of the target's ids, and its logits are in the order of these
        kept = np.arange(len(draft.kept_tokens))
        to_draft, shared, counts = np.arange(target_size), np.stack([draft.kept_tokens, kept]), (target_size, len(kept))
    elif translation is not None:
        to_draft, shared = translation.maps(target_size, draft_size)
        overlap = translation.overlap_of(shared[0].tolist())
        if not shared.size or overlap < min_overlap:  # ids beyond the logits cannot be proposed
            raise PairError(
                f"the models can give {overlap:.1%} of the tokens in the calibration texts, fewer than their "
                f"tokenizers; --min-overlap asks for {min_overlap:.1%}; choose a draft of the target's family, "
                "or leave out --draft to use prompt lookup"
            )
        counts = translation.target.count(target_size), translation.draft.count(draft_size)
    else:
        return None
    (folder / MAPS).parent.mkdir(exist_ok=True)
    np.savez(folder / MAPS, allow_pickle=False, to_draft=to_draft, shared=shared)
    return SharedVocabulary(MAPS, shared.shape[1], *counts)
