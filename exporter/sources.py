"""What `--target` and `--draft` name, looked at before anything slow is imported.

Of a draft that reads the target, config.json, the headers of tensors and the options decide much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..bundle import HiddenDraftKind
from ..engines.catalogue import ENGINES
from ..errors import ParameterError
from .checkpoints.source import (
    check_length,
    download,
    find_local,
    find_weights,
    is_gguf,
    read_config,
    read_headers,
    stated_positions,
)
from .hidden_drafts.fit import Published, Said, Target, find_taps
from .hidden_drafts.folder import pickled_named, published, refuse_as_target
from .hidden_drafts.mtp_tensors import find_stored, is_mtp, of_gguf
from .hidden_drafts.vocabulary import read_tables, read_target_ids
from .options import BuildOptions, NamedDraft
from .weights.texts import require_length


def check_sources(target: str, drafts: Sequence[NamedDraft], options: BuildOptions) -> None:
    """Look at the folders that are here; those of the hub are looked at when they are downloaded.

    Raises `CheckpointError`, `PairError`, `ParameterError`, and `MissingPackageError` where a GGUF file cannot be read.
    """
    place, kinds, unseen = find_local(target), dict[str, HiddenDraftKind | None](), False
    if place and not is_gguf(target):
        refuse_as_target(target, place)
        check_length("target", stated_positions(read_config(target, place)), options.max_seq_len)
    readers = list[Published]()
    for named in drafts:
        source = named.source
        if is_mtp(source):
            kinds[source] = "mtp"
            _check_mtp(target, place, options.draft_vocabulary)
            continue
        with pickled_named(source):
            folder = find_local(source)
        kinds[source], unseen = None, unseen or folder is None
        if folder is None or is_gguf(source):
            continue
        if reader := published(source, folder):
            kinds[source] = reader.kind
            readers.append(reader)
        else:
            positions = stated_positions(read_config(source, folder, "draft"))
            check_length(f"draft {named.name}", positions, options.max_seq_len)
    check_kinds(kinds, options, unseen)
    if options.texts.own:
        require_length(options.texts.texts, (place or Path(target)) / "tokenizer.json")
    for reader in readers:
        if reader.kind != "assistant":
            _check_reader(reader, target, place, options.said)


def look_on_hub(sources: Sequence[str]) -> None:
    """Raises `CheckpointError` for those that are neither here nor there."""
    for source in sources:
        if not is_mtp(source) and find_local(source) is None:
            download(source.partition(":")[0], ["config.json"])


def check_kinds(kinds: Mapping[str, HiddenDraftKind | None], options: BuildOptions, unseen: bool = False) -> None:
    """kinds: of all drafts that read the target, by what names them; None for others. unseen: whether some of these are
    not here yet. Raises `ParameterError` for engines that do not run one, for tree rows that none fills, for an option
    that none of them takes, and for one that would overrule the configs of several.
    """
    for source, kind in kinds.items():
        without = [engine for engine in options.engines if kind and kind not in ENGINES[engine].hidden_drafts]
        if without:
            raise ParameterError(
                f"--draft {source} reads the target's hidden states, and engine {without[0]} does not run such drafts "
                f"({kind}); leave that engine out, or choose a draft that reads tokens only",
                "draft",
            )
    if options.tree_rows and kinds and None not in kinds.values():
        raise ParameterError(
            f"--tree-rows is {options.tree_rows}, and drafts that read the target's hidden states give no candidates; "
            "leave it out, or add a draft that reads tokens only",
            "tree_rows",
        )
    for option, given, taking, meant in (
        ("draft-taps", options.draft_taps, ("eagle3", "dflash", "dspark"), "EAGLE-3, DFlash and DSpark drafts"),
        ("draft-feedback", options.draft_feedback, ("eagle3",), "EAGLE-3 heads"),
        (
            "draft-vocabulary",
            options.draft_vocabulary is not None,
            ("mtp", "assistant"),
            "MTP layers and Gemma 4's assistants",
        ),
    ):
        if not given or unseen:
            continue
        takers = [source for source, kind in kinds.items() if kind in taking]
        field = option.replace("-", "_")
        if not takers:
            none = f"{' and '.join(kinds)} {'is' if len(kinds) == 1 else 'are'} none"
            none = none if kinds else "there is no --draft"
            raise ParameterError(f"--{option} is for {meant}, and {none}; leave it out", field)
        if len(takers) > 1:
            raise ParameterError(
                f"--{option} would overrule the configs of {' and '.join(takers)}; correct the config.json of the one "
                "that is wrong instead",
                field,
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


def _check_reader(draft: Published, target: str, place: Path | None, said: Said) -> None:
    theirs = read_config(target, place) if place and not is_gguf(target) else {}
    if size := Target.of(theirs):
        find_taps(draft, size, said)
        tables = read_tables(draft.source, draft.tensors)
        read_target_ids(draft.source, tables, draft.vocab_size(size), size.vocab_size)
