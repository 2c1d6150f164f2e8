"""The proof of trees: additional rows give the logits that the Hugging Face model gave for their own sequences.

The schedule of `parity.py` rejects drafts: it verifies k tokens and continues after the first with others. Both
sequences are recorded. A tree holds them in one pass: the first as the chain, and below the chain's first row two
branches with their rows in turn, the second sequence and the first once more. So every row after the chain but two has
a row before it that it must not see, and one that it must.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from ...bundle import Contract, Proof
from ...engines.base import Decoder, Logits, TakesTrees
from .parity import LOGIT_TOLERANCE, POISON, Arithmetic, ReferenceStep, Rounding, largest_error, logits_of


@runtime_checkable
class TreeDecoder(Decoder, TakesTrees, Protocol):
    pass


def _rejected(reference: Sequence[ReferenceStep], contract: Contract) -> Iterator[tuple[int, ReferenceStep]]:
    """(index of a verified draft in `reference`, what was fed after its first token)."""
    for place, (entry, after) in enumerate(pairwise(reference)):
        widths = {len(one.step.tokens) for one in (entry, after)} | {entry.step.rows, after.step.rows}
        if widths == {contract.widest_step} and after.step.position == entry.step.position + 1:
            yield place, after


def measure_trees(
    decoder: TreeDecoder,
    reference: list[ReferenceStep],
    contract: Contract,
    where: tuple[str, str],
    kind: Arithmetic,
) -> Proof:
    """where: engine and dialect. kind: the arithmetic of the graph. contract: with tree rows.

    A graph that rounds activations is compared with its own passes over each sequence, whose rows round alike.
    """
    if isinstance(kind, Rounding):
        own = logits_of(decoder, reference)
        reference, kind = (
            [ReferenceStep(one.step, logits) for one, logits in zip(reference, own, strict=True)],
            kind.exact,
        )
    branches = dict(_rejected(reference, contract))
    chain, rows = contract.max_draft_tokens + 1, contract.tree_rows
    wanted, answers, length = list[ReferenceStep](), list[Logits](), 0
    decoder.overwrite_rows(0, 0.0)
    for place, entry in enumerate(reference):
        step = entry.step
        if place in branches:
            decoder.overwrite_rows(step.position, POISON)
            other = branches[place]
            beside = [(other.step.tokens, other.logits), (step.tokens[1:], entry.logits[1:])]
            tokens, expected = step.tokens[:chain].tolist(), [*entry.logits[:chain]]
            for row in range(rows):
                tokens_beside, logits = beside[row % len(beside)]
                tokens.append(int(tokens_beside[row // len(beside)]))
                expected.append(logits[row // len(beside)])
            parents = [0 if row < len(beside) else chain + row - len(beside) for row in range(rows)]
            answers.append(decoder.step_tree(tokens, parents, step.position).copy())
            wanted.append(ReferenceStep(step, np.stack(expected)))
            length = step.position + max(chain, 1 + (rows + 1) // 2)
        decoder.step(step.tokens.tolist(), step.position)
    decoder.overwrite_rows(0, 0.0)
    engine, dialect = where
    error = largest_error(wanted, answers)
    return Proof(engine, f"{dialect}, trees", "target", sum(map(len, answers)), length, error, LOGIT_TOLERANCE[kind])
