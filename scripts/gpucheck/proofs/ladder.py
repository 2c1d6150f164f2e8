"""Compares steps before, after and across every span's end with transformers: each reads another part of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from specexport.bundle import Contract, Precision
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE, ReferenceStep, Step, max_error

from ..finding import Finding
from ..session_under_test import Subject
from .parity import decoders


def prove_ladder(subject: Subject) -> Iterator[Finding]:
    session = subject.session
    contract = session.bundle.manifest.contract
    tolerance = LOGIT_TOLERANCE[contract.precision]
    for role, decoder in decoders(session):
        steps = ladder_steps(contract, decoder.vocab_size)
        error = max_error(decoder, record(subject.checkpoints[role], contract.precision, steps))
        spans = ", ".join(map(str, contract.spans))
        yield Finding(
            f"ladder, {role}",
            error <= tolerance,
            f"{error:.1e} standard deviations off at widths {_widths(contract)} around rows {spans} "
            f"(allowed {tolerance:.0e})",
        )
    session.reset()


def ladder_steps(contract: Contract, vocab_size: int) -> list[Step]:
    """One sequence as long as the capacity, fed until just after each span's end, and then again in steps around that
    end.

    The steps end one row before it, at it and one row after it, with poisoned rows after them. The next chunk crosses
    it.
    """
    tokens = np.random.default_rng(1).integers(0, vocab_size, contract.capacity)
    chunk, steps, end = contract.prompt_chunk, list[Step](), 0

    def feed(start: int, width: int, compare: bool) -> int:
        steps.append(Step(tokens[start : start + width], start, width if compare else 0, poison=compare))
        return start + width

    for edge in contract.spans:
        last = min(edge + 1, contract.capacity)
        while end < last:
            end = feed(end, min(chunk, contract.capacity - end), compare=False)
        places = {
            (stop - width, width)
            for width in _widths(contract)
            for stop in (edge - 1, edge, edge + 1)
            if stop <= contract.capacity
        }
        for start, width in sorted(places, reverse=True):  # each begins within the rows that the previous one has left
            end = feed(start, width, compare=True)
    return steps


def record(checkpoint: Path, precision: Precision, steps: list[Step]) -> list[ReferenceStep]:
    """The logits of transformers, in fp32 with the weights rounded to `precision`, in one pass over the sequence."""
    tokens: NDArray[np.int64] = np.zeros(max(step.end for step in steps), np.int64)
    for step in steps:
        tokens[step.position : step.end] = step.tokens
    wanted = sorted({row for step in steps for row in range(step.end - step.rows, step.end)})
    model = find_checkpoint(str(checkpoint)).load(precision).float()
    with torch.no_grad():
        found = (
            model(input_ids=torch.from_numpy(tokens)[None], use_cache=False, logits_to_keep=torch.tensor(wanted))
            .logits[0]
            .numpy()
        )
    rows = dict(zip(wanted, found, strict=True))
    return [
        ReferenceStep(
            step, np.stack([rows[row] for row in range(step.end - step.rows, step.end)]) if step.rows else found[:0]
        )
        for step in steps
    ]


def _widths(contract: Contract) -> tuple[int, ...]:
    return 1, 2, contract.widest_step
