"""Can this draft guess for this target? Tokenizers are compared by content, never by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..errors import PairError, ParameterError
from .checkpoint import Checkpoint


def check_pair(target: Checkpoint, draft: Checkpoint) -> list[str]:
    """Warnings about a pair that works; raises `PairError` naming what differs in one that cannot."""
    differences = list(tokenizer_differences(_tokenizer_json(target), _tokenizer_json(draft)))
    if differences:
        raise PairError(f"target and draft have different tokenizers: {'; '.join(differences[:3])}. Choose a draft of the target's family")
    _ = target.stop_token_ids  # refused here, and not when the models have been exported
    warnings = []
    if draft.fp32_bytes >= target.fp32_bytes:
        warnings.append(
            f"the draft's weights ({draft.fp32_bytes / 1e6:.1f} MB) are not smaller than the target's "
            f"({target.fp32_bytes / 1e6:.1f} MB in fp32): speculation can hardly pay. Are they swapped?"
        )
    return warnings


def check_capacity(target: Checkpoint, draft: Checkpoint, max_seq_len: int | None) -> int:
    """The cache's capacity: `max_seq_len`, by default 4096 or less where the positions end earlier.

    Raises `ParameterError` when either model's positions end before it.
    """
    limits = {role: checkpoint.max_positions for role, checkpoint in (("target", target), ("draft", draft))}
    if max_seq_len is None:
        return min([4096, *(limit for limit in limits.values() if limit)])
    for role, limit in limits.items():
        if limit and max_seq_len > limit:
            raise ParameterError(f"--max-seq-len is {max_seq_len}; the {role}'s positions end at {limit}")
    return max_seq_len


def tokenizer_differences(target: dict[str, Any], draft: dict[str, Any]) -> Iterator[str]:
    """What differs between two `tokenizer.json` contents, in the order in which it matters."""
    ours, theirs = _vocabulary(target), _vocabulary(draft)
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
        place = next((i for i, (a, b) in enumerate(zip(merges, other_merges, strict=False)) if a != b), min(len(merges), len(other_merges)))
        yield f"merges differ from merge {place} on ({len(merges)} against {len(other_merges)})"
    special, other_special = _added(target), _added(draft)
    if special != other_special:
        names = sorted(set(special) ^ set(other_special) or {n for n in special if special[n] != other_special[n]})
        yield f"special and added tokens differ: {', '.join(names[:4])}"
    for part in ("normalizer", "pre_tokenizer"):
        if target.get(part) != draft.get(part):
            yield f"the {part} differs"


def _tokenizer_json(checkpoint: Checkpoint) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(checkpoint.tokenizer.backend_tokenizer.to_str())
    return parsed


def _vocabulary(tokenizer: dict[str, Any]) -> dict[int, str]:
    vocabulary = tokenizer["model"].get("vocab", {})
    if isinstance(vocabulary, list):  # unigram: (token, score) in the order of ids
        return {index: entry[0] for index, entry in enumerate(vocabulary)}
    return {index: token for token, index in vocabulary.items()}


def _merges(tokenizer: dict[str, Any]) -> list[Any]:
    return [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in tokenizer["model"].get("merges", [])]


def _added(tokenizer: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {entry["content"]: (entry["id"], entry["special"]) for entry in tokenizer.get("added_tokens", [])}
