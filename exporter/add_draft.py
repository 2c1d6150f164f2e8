"""`specexport add-draft`: add a draft to a bundle without rebuilding the target."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from ..bundle import Bundle, Contract, Manifest, ModelSpec
from ..errors import OutputError, ParameterError
from ..user_cache import user_cache
from .build import BuildReport
from .checkpoints.pair import OwnTokens
from .progress import BuildProgress, Silent, Timed
from .prompt_chunk import require_memory_for_copies
from .put_draft import FoundDraft, check_addable, put_draft
from .request.drafts import NamedDraft
from .request.options import BuildOptions
from .storage.stage_cache import open_cache


@dataclass(frozen=True)
class AddOptions:
    """precision: of the draft's weights. The default is the first draft's, or the target's if there is no draft.

    The others as of `BuildOptions`.
    """

    precision: str | None = None
    min_overlap: float = 0.5
    calibration_texts: Path | None = None
    cache: Path | None = None

    def of(self, manifest: Manifest) -> BuildOptions:
        """The options for building this bundle on the CPU. Raises `ParameterError`."""
        contract = manifest.contract
        return BuildOptions(
            max_seq_len=contract.capacity,
            max_draft_tokens=contract.max_draft_tokens,
            prompt_chunk=contract.prompt_chunk,
            min_overlap=self.min_overlap,
            precision=stored_as(contract, manifest.target),
            draft_precision=self.precision or stored_as(contract, [*manifest.pair.values()][-1]),
            calibration_texts=self.calibration_texts,
            cache=self.cache,
        )


def stored_as(contract: Contract, model: ModelSpec) -> str:
    """What `--precision` calls the weights of a model."""
    return contract.precision if model.format == "float" else model.format


def add_draft(
    bundle: Bundle, named: NamedDraft, options: AddOptions | None = None, progress: BuildProgress | None = None
) -> BuildReport:
    """Export and prove a draft, and add it to the bundle, or replace the one of its name.

    Calibration results stay unless a draft is replaced. Raises `ParameterError`, `CheckpointError`, `PairError`,
    `ProofError`, `OutputError`; the bundle is then unchanged.
    """
    asked, manifest = options or AddOptions(), bundle.manifest
    check_addable(manifest, named.name)
    building = asked.of(manifest)
    timed, cache, texts = Timed(progress or Silent()), open_cache(asked.cache or user_cache()), building.texts
    with timed.stage("check the draft", 1):
        found = FoundDraft.find(named, OwnTokens.of_bundle(bundle), asked.min_overlap, texts)
        limit, capacity = found.checkpoint.max_positions, manifest.contract.capacity
        if limit and limit < capacity:
            raise ParameterError(
                f"the bundle's sequences have up to {capacity} tokens, but {named.source} has only {limit} positions; "
                f"choose another draft, or build the bundle again with --max-seq-len {limit}"
            )
        require_memory_for_copies({"draft": found.checkpoint}, building, manifest.contract.prompt_chunk)
    for warning in found.warnings:
        timed.note(f"warning: {warning}")
    if named.name in manifest.draft_names:
        timed.note(f"replaces the draft {named.name}")
    export = found.export(building.numbers, texts)
    try:
        added = put_draft(bundle, found, export, asked.min_overlap, cache, timed)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise OutputError(f"{error.filename2 or error.filename}: {reason}; the bundle is unchanged") from None
    return BuildReport(added, tuple(timed.times), found.warnings)
