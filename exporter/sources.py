"""What `--target` and `--draft` name, looked at before anything slow is imported.

Of a draft that reads the target, config.json, the headers of tensors and the options decide much.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bundle import HiddenDraftKind
from ..engines.catalogue import ENGINES
from ..errors import ParameterError
from .checkpoints.source import find_local, find_weights, is_gguf, read_config, read_headers
from .hidden_drafts.fit import Said, Target, architecture_of, draft_vocab, find_taps, refuse_another
from .hidden_drafts.folder import format_of, pickled_named, tensors_of
from .hidden_drafts.kinds import BlockFormat, Format, kind_of
from .hidden_drafts.mtp_tensors import find_stored, is_mtp, of_gguf
from .hidden_drafts.vocabulary import read_tables, read_target_ids
from .options import BuildOptions, NamedDraft


def check_sources(target: str, drafts: Sequence[NamedDraft], options: BuildOptions) -> None:
    """Look at the folders that are here; those of the hub are looked at when they are downloaded.

    Raises `CheckpointError`, `PairError`, `ParameterError`, and `MissingPackageError` where a GGUF file cannot be read.
    """
    place, kinds = find_local(target), list[HiddenDraftKind | None]()
    for named in drafts:
        kind: HiddenDraftKind | None = None
        if is_mtp(named.source):
            kind = "mtp"
            _check_mtp(target, place, options.draft_vocabulary)
        else:
            with pickled_named(named.source):
                folder = find_local(named.source)
            if folder is None:
                kinds.append(None)  # not known yet
                continue
            if not is_gguf(named.source) and (format := format_of(named.source, folder)):
                kind = kind_of(format, tensors_of(find_weights(named.source, folder)))
                _check_reader(named.source, folder, format, target, place, said(options))
        check_options(named.source, kind, options)
        kinds.append(kind)
    check_leaves(kinds, options.tree_rows)


def check_leaves(kinds: Sequence[HiddenDraftKind | None], tree_rows: int) -> None:
    """kinds: of all drafts, as for `check_options`. Raises `ParameterError` where none of them gives leaves."""
    if tree_rows and kinds and None not in kinds:
        raise ParameterError(
            f"--tree-rows is {tree_rows}, and drafts that read the target's hidden states give no leaves; leave it"
            " out, or add a draft that reads tokens only",
            "tree_rows",
        )


def said(options: BuildOptions) -> Said:
    return Said(options.draft_taps, options.draft_feedback, options.force)


def check_options(source: str, kind: HiddenDraftKind | None, options: BuildOptions) -> None:
    """kind: of a draft that reads the target. Raises `ParameterError` for options that it does not go with."""
    without = [engine for engine in options.engines if kind and kind not in ENGINES[engine].hidden_drafts]
    if without:
        raise ParameterError(
            f"--draft {source} reads the target's hidden states, and engine {without[0]} does not run such drafts "
            f"({kind}); leave that engine out, or choose a draft that reads tokens only",
            "draft",
        )
    if options.draft_taps and kind in (None, "mtp"):
        raise ParameterError(
            f"--draft-taps is for EAGLE-3, DFlash and DSpark drafts, and {source} is none; leave it out", "draft_taps"
        )
    if options.draft_feedback and kind != "eagle3":
        raise ParameterError(
            f"--draft-feedback is for EAGLE-3 heads, and {source} is none; leave it out", "draft_feedback"
        )
    if options.draft_vocabulary is not None and kind != "mtp":
        raise ParameterError(
            f"--draft-vocabulary is for --draft mtp, whose head is the target's; {source} has its own: leave it out",
            "draft_vocabulary",
        )


def check_vocabulary(size: int | None, vocab_size: int) -> None:
    """size: as `BuildOptions.draft_vocabulary`. Raises `ParameterError`."""
    if size is not None and not 0 < size <= vocab_size:
        raise ParameterError(f"--draft-vocabulary is {size}; it must be from 1 to {vocab_size}", "draft_vocabulary")


def _check_mtp(target: str, place: Path | None, vocabulary: int | None) -> None:
    if is_gguf(target):
        raise of_gguf(target)
    if place and (size := Target.of(read_config(target, place))):
        check_vocabulary(vocabulary, size.vocab_size)
        find_stored(target, read_headers(find_weights(target, place)), size.layers, size.width)


def _check_reader(
    source: str, folder: Path, format: Format | BlockFormat, target: str, place: Path | None, said: Said
) -> None:
    config = read_config(source, folder, "draft")
    theirs = read_config(target, place) if place and not is_gguf(target) else {}
    stored = tensors_of(find_weights(source, folder))
    if size := Target.of(theirs):
        find_taps(source, format, config, {name: shape for name, (_, _, shape) in stored.items()}, size, said)
        tables = read_tables(source, stored)
        read_target_ids(source, tables, draft_vocab(source, config, size), size.vocab_size)
    if not said.copy:
        refuse_another(source, config, target, architecture_of(theirs))
