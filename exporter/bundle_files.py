"""A bundle's files other than graphs: the tokenizer with its chat templates, a map between vocabularies, and the
manifest over all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..bundle import (
    SCHEMA_VERSION,
    Contract,
    Defaults,
    DraftSpec,
    Manifest,
    ModelSpec,
    Role,
    SharedVocabulary,
    TextSpec,
    list_files,
)
from ..errors import PairError
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.shared_vocabulary import Translation
from .stage_cache import package_versions

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
        special_tokens=special_tokens(tokenizer),
        stop_token_ids=target.stop_token_ids,
        tools_template=written("tools_template.jinja", templates.get(TOOL_USE)),
    )


def named_templates(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Jinja sources of the chat templates by name; a single one is the default."""
    templates = tokenizer.chat_template
    return dict(templates) if isinstance(templates, dict) else {DEFAULT: templates} if templates is not None else {}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Special tokens by the names that templates have for them, such as `bos_token`."""
    return {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}


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


def write_maps(
    translation: Translation | None, target: ModelSpec, draft: ModelSpec, min_overlap: float, staging_dir: Path
) -> SharedVocabulary | None:
    """The draft's translation, where it has one, as wide as the logits turned out to be."""
    if translation is None:
        return None
    target_size, draft_size = target.vocab_size, draft.vocab_size
    to_draft, shared = translation.maps(target_size, draft_size)
    overlap = translation.overlap_of(shared[0].tolist())
    if not shared.size or overlap < min_overlap:  # ids beyond the logits cannot be proposed
        raise PairError(
            f"the models can give {overlap:.1%} of the tokens in the calibration texts, fewer than their tokenizers; "
            f"--min-overlap asks for {min_overlap:.1%}; choose a draft of the target's family, "
            "or leave out --draft to use prompt lookup"
        )
    (staging_dir / MAPS).parent.mkdir(exist_ok=True)
    np.savez(staging_dir / MAPS, allow_pickle=False, to_draft=to_draft, shared=shared)
    return SharedVocabulary(
        MAPS, shared.shape[1], translation.target.count(target_size), translation.draft.count(draft_size)
    )


def write_kept_tokens(kept: NDArray[np.int64], target_size: int, staging_dir: Path) -> SharedVocabulary:
    """For a draft that reads all of the target's ids and proposes the tokens `kept [m]`, in the order of its logits."""
    shared = np.stack([kept, np.arange(len(kept))])
    (staging_dir / MAPS).parent.mkdir(exist_ok=True)
    np.savez(staging_dir / MAPS, allow_pickle=False, to_draft=np.arange(target_size), shared=shared)
    return SharedVocabulary(MAPS, len(kept), target_size, len(kept))


def write_vocabulary(
    draft: Checkpoint,
    translation: Translation | None,
    target: ModelSpec,
    spec: ModelSpec,
    min_overlap: float,
    folder: Path,
) -> SharedVocabulary | None:
    """The map between the target's ids and those of a draft that has others, into the draft's `folder`. spec: of the
    draft.
    """
    if draft.kept_tokens is not None:
        return write_kept_tokens(draft.kept_tokens, target.vocab_size, folder)
    return write_maps(translation, target, spec, min_overlap, folder)


def reference_path(role: Role) -> str:
    return f"reference/{role}.npz"


@dataclass(frozen=True)
class Contents:
    """What was made for a bundle. engines: that it is built for."""

    target: ModelSpec
    drafts: tuple[DraftSpec, ...]
    text: TextSpec
    engines: tuple[str, ...]
    defaults: Defaults = field(default_factory=Defaults)


def make_manifest(contents: Contents, contract: Contract, staging_dir: Path, command: str) -> Manifest:
    """staging_dir: the folder with all files of the bundle but the manifest."""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
        packages=package_versions(),
        contract=contract,
        plans=(),
        files=list_files(staging_dir),
        **vars(contents),
    )
