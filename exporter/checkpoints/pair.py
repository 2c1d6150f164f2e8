"""Whether this draft can draft for this target. Tokenizers are compared by content, never by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import PairError
from ...runtime.text.token_bytes import token_names
from ..weights.texts import read_texts
from .checkpoint import Checkpoint
from .config import end_of_positions
from .shared_vocabulary import Tokens, Translation
from .source import check_length

FALLS_QUICKLY = 0.9  # below this overlap a warning says what it costs


def check_target(target: Checkpoint) -> None:
    """Raises `CheckpointError` for what would be refused when it has been exported."""
    _ = target.stop_token_ids, target.defaults, target.fp32_bytes
    target.check_tokens()


def check_draft(
    target: Checkpoint, draft: Checkpoint, min_overlap: float, texts: Sequence[str] = ()
) -> tuple[Translation | None, list[str]]:
    """How a draft of another tokenizer is translated, and warnings about a draft that works.

    texts: what the overlap is counted on, by default the built-in calibration texts. Raises `PairError` for a draft
    that has less than `min_overlap` of the target's tokens in them.
    """
    draft.check_tokens()
    if draft.taps:  # it reads the target's tokens
        return None, []
    translation, warnings = _translate(target, draft, min_overlap, texts)
    if draft.fp32_bytes >= target.fp32_bytes:
        warnings.append(
            f"the draft's weights ({draft.fp32_bytes / 1e6:.1f} MB) are not smaller than the target's "
            f"({target.fp32_bytes / 1e6:.1f} MB in fp32): speculation is unlikely to pay. Are the two swapped?"
        )
    return translation, warnings


def check_capacity(models: Mapping[str, Checkpoint], max_seq_len: int | None) -> int:
    """The cache's capacity: `max_seq_len`, by default 4096 or less where the positions end earlier.

    models: by what they are called. Raises `ParameterError` when a model's positions end before it.
    """
    limits = {role: checkpoint.max_positions for role, checkpoint in models.items()}
    if max_seq_len is None:
        return min([4096, *(limit for limit in limits.values() if limit)])
    for role, limit in limits.items():
        check_length(role, limit, max_seq_len, end_of_positions(models[role].config))
    return max_seq_len


def tokenizer_differences(target: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two `tokenizer.json` contents, in the order in which it matters."""
    ours, theirs = token_names(target), token_names(draft)
    if ours != theirs:
        ids = sorted(set(ours) | set(theirs))
        other = [i for i in ids if ours.get(i) != theirs.get(i)]
        first = other[0]
        yield (
            f"vocabulary of {len(ours)} against {len(theirs)} tokens, {len(other)} ids differ, "
            f"the first is {first}: {ours.get(first)!r} against {theirs.get(first)!r}"
        )
    merges, other_merges = _merges(target), _merges(draft)
    if merges != other_merges:
        place = next(
            (i for i, (a, b) in enumerate(zip(merges, other_merges, strict=False)) if a != b),
            min(len(merges), len(other_merges)),
        )
        yield f"merges differ from merge {place} on ({len(merges)} against {len(other_merges)})"
    special, other_special = _added(target), _added(draft)
    if special != other_special:
        names = sorted(set(special) ^ set(other_special) or {n for n in special if special[n] != other_special[n]})
        yield f"special and added tokens differ: {', '.join(names[:4])}"
    for part in ("normalizer", "pre_tokenizer"):
        if target.get(part) != draft.get(part):
            yield f"the {part} differs"


def _translate(
    target: Checkpoint, draft: Checkpoint, min_overlap: float, texts: Sequence[str]
) -> tuple[Translation | None, list[str]]:
    """None where the draft reads the target's ids as they are; and warnings. As `check_draft`."""
    ours, theirs = Tokens.of(target.tokenizer), Tokens.of(draft.tokenizer)
    difference = next(tokenizer_differences(ours.tokenizer, theirs.tokenizer), None)
    if difference is None:
        return None, []
    translation = Translation.between(ours, theirs, texts or read_texts(None))
    if translation.is_identity:
        return None, [
            f"target and draft have the same tokens, but {difference}: the draft reads texts as the target splits them"
        ]
    shared, overlap = len(translation.pairs), translation.overlap
    note = f"target and draft have different tokenizers ({difference}): the draft has {shared} of the target's "
    note += f"{len(translation.target.ids)} tokens, which are {overlap:.1%} of the tokens in the calibration texts"
    if not shared or overlap < min_overlap:
        needed = f"{min_overlap:.1%} or more" if min_overlap else "above 0"
        raise PairError(
            f"{note}; it must be {needed}. Choose a draft of the target's family, a smaller "
            "--min-overlap, or leave out --draft to use prompt lookup"
        )
    if overlap < FALLS_QUICKLY:
        note += ". Acceptance falls quickly with the overlap; specexport bench measures what is left"
    return translation, [note]


def _merges(tokenizer: Mapping[str, Any]) -> list[Any]:
    return [
        tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge)
        for merge in tokenizer["model"].get("merges", [])
    ]


def _added(tokenizer: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {entry["content"]: (entry["id"], entry["special"]) for entry in tokenizer.get("added_tokens", [])}
