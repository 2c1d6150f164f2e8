"""How much each system's next-token distributions diverge from the fp32 model's, on the same text for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
from interleave import Asked, Kept
from process import RunnerError

EXACT = "transformers"  # fp32
ROWS = 64  # how many rows are in double precision at a time


@dataclass(frozen=True)
class Divergence:
    """nats: mean KL(fp32 || system). agreement: share of rows with the same most likely token."""

    nats: float
    agreement: float
    rows: int


def log_probs(logits: numpy.ndarray) -> numpy.ndarray:
    """Log-probabilities `[rows, vocab] float64`."""
    shifted = logits.astype(numpy.float64)
    shifted -= shifted.max(-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(-1, keepdims=True))


def compare_rows(exact: numpy.ndarray, other: numpy.ndarray) -> tuple[float, int]:
    """(sum of the rows' divergences, number of rows that agree), from logits `[rows, vocab]` of both."""
    nats, agreed = 0.0, 0
    for start in range(0, len(exact), ROWS):
        ours, theirs = exact[start : start + ROWS], other[start : start + ROWS]
        expected = log_probs(ours)
        probs = numpy.exp(expected)
        # Tokens of probability 0 add nothing, even if their logarithm is not finite.
        nats += float(numpy.multiply(probs, expected - log_probs(theirs), where=probs > 0, out=probs).sum())
        agreed += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    return nats, agreed


def shared_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """The number of tokens that all sequences begin with: those of a chat template, which are not informative."""
    columns = zip(*sequences, strict=False)
    return next((place for place, tokens in enumerate(columns) if len(set(tokens)) > 1), 0)


def read_logits(runner: Asked, tokens: Sequence[int], folder: Path) -> numpy.ndarray:
    """The runner's logits, `[len(tokens), vocab] float32`. Raises `RunnerError`."""
    path = folder / "logits"
    said = runner.ask({"logits_of": list(tokens), "file": str(path)})
    found = numpy.fromfile(path, numpy.float32).reshape(said["rows"], said["columns"])
    path.unlink()
    return found


def measure(
    exact: Asked, others: Sequence[Asked], sequences: Sequence[Sequence[int]], folder: Path, kept: Kept | None = None
) -> dict[str, Divergence]:
    """Divergences by the systems' names, including the exact one. folder: for files with logits.

    The rows of the prefix that all sequences share are left out. kept: systems that are finished in it are not asked
    again. Raises `RunnerError` if vocabularies differ.
    """
    finished: dict[str, Any] = {other.name: kept.finished.get(_key(other)) if kept else None for other in others}
    missing = [other for other in others if finished[other.name] is None]
    start = shared_prefix(sequences)
    rows = sum(len(tokens) - start for tokens in sequences)
    sums = {other.name: numpy.zeros(2) for other in missing}
    for tokens in sequences if missing else ():
        expected = read_logits(exact, tokens, folder)[start:]
        for other in missing:
            found = read_logits(other, tokens, folder)[start:] if other is not exact else expected
            if found.shape != expected.shape:
                raise RunnerError(
                    f"{other.name} has {found.shape[1]} logits a token, {exact.name} has {expected.shape[1]}; "
                    "they cannot be compared, leave it out"
                )
            sums[other.name] += compare_rows(expected, found)
    for other in missing:
        nats, agreed = sums[other.name]
        finished[other.name] = asdict(Divergence(nats / rows, agreed / rows, rows))
        if kept:
            kept.add(_key(other), finished[other.name])
    return {name: Divergence(**row) for name, row in finished.items()}


def _key(runner: Asked) -> str:
    return f"divergence of {runner.name}"
