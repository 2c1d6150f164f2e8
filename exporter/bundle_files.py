"""A bundle's files other than graphs: the tokenizer, a map between vocabularies, and the manifest over all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

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
from .checkpoints.chat_templates import chat_template, special_tokens
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.shared_vocabulary import Translation
from .stage_cache import package_versions

MAPS = "tokenizer/shared_vocabulary.npz"


def write_text(target: Checkpoint, staging_dir: Path) -> TextSpec:
    """The tokenizer as the runtime reads it: `tokenizer.json`, and the chat templates where there are any."""
    folder = staging_dir / "tokenizer"
    folder.mkdir()
    tokenizer = target.tokenizer
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
        chat_template=written("chat_template.jinja", chat_template(tokenizer, tools=False)),
        special_tokens=special_tokens(tokenizer),
        stop_token_ids=target.stop_token_ids,
        tools_template=written("tools_template.jinja", chat_template(tokenizer, tools=True)),
    )


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
