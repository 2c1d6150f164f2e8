"""The proof of a compiled model graph: its logits against those recorded from the Hugging Face model.

The schedule walks through everything that the loop does to a cache. Near the start: chunked prefill with an odd last
chunk, steps of width 1 and 2, a draft that is verified and rejected, its rows poisoned and rewritten, and every width
up to k + 1. Then over a step of the capacity ladder and back. Then far out, beyond any sliding window: prefill in
whole chunks, and again a rejected draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...bundle import Contract, Format, ModelSpec, Precision, Proof
from ...engines.base import Decoder, Logits
from ...errors import ProofError

# What a graph computes in: its own precision, widened to fp32 over weights in half precision, or with quantized
# weights.
Arithmetic = Precision | Literal["widened"] | Format
# The reference is evaluated in fp32 (`exporter/proving/reference.py`). Measured over tiny models of 23 families and the
# demo pair, right graphs are off by up to: fp32 1e-5; widened 6e-3, by constants that tracing in half precision rounds;
# fp16 1.4e-2; bf16, rounded behind every operator, 1.5e-1 (0.6 where a mixture of experts then chooses another expert).
# Trained and deeper models get some room. With rounded activations, sums in another order round some values the other
# way, which rounds more of them behind: int8 is off by 1e-5 with one layer, 7e-2 with five, 3e-1 with 24 random ones,
# where that is what rounding itself does. A wrong mask, window or position is off by 2 and more in every one of them.
LOGIT_TOLERANCE: dict[Arithmetic, float] = {
    "fp32": 1e-3,
    "widened": 2e-2,
    "fp16": 1e-1,
    "bf16": 5e-1,
    "int8": 8e-1,
    "int4": 8e-1,
    "fp8": 8e-1,
}
# Large and finite: under an explicit mask a poisoned row has weight 0, and 0 * NaN would still poison.
POISON = 1e4

# Sequences are proved up to this length, and farther where a sliding window only begins to hide rows beyond it.
FAR = 512


@dataclass(frozen=True)
class Step:
    """Feed `tokens [T]` at `position`, and compare `rows` logits, counted from the last.

    `poison` first fills every row from the position on with garbage.
    """

    tokens: NDArray[np.int64]
    position: int
    rows: int
    poison: bool = False

    @property
    def end(self) -> int:
        return self.position + len(self.tokens)


@dataclass(frozen=True)
class ReferenceStep:
    step: Step
    logits: Logits  # [rows, vocab]


def schedule(contract: Contract, vocab_size: int, window: int = 0, spare: int = 0) -> list[Step]:
    """The steps of the proof, with tokens drawn from a fixed seed.

    window: the model's largest sliding window. spare: rows at the end of the capacity that no step writes.
    """
    rng = np.random.default_rng(0)
    widest, chunk = contract.widest_step, contract.prompt_chunk
    steps: list[Step] = []

    def feed(width: int, position: int, poison: bool = False, compare: bool = True) -> int:
        rows = (width if width <= widest else 1) if compare else 0
        steps.append(Step(rng.integers(0, vocab_size, width), position, rows, poison))
        return position + width

    def reject(position: int) -> int:
        feed(widest, position)  # k draft tokens, of which
        return feed(widest, position + 1, poison=True)  # only the fed token stands

    position = feed(min(chunk, (contract.capacity - spare) // 4), 0)
    position = feed(min(chunk, (contract.capacity - spare) // 4) // 2 + 1, position)
    position = feed(1, feed(1, position))
    position = feed(2, position - 1)  # the draft's first step rewrites the last row
    position = reject(position) - widest + 1
    for width in range(1, widest + 1):
        feed(width, position, poison=True)  # every width over the same, rewritten rows

    def walk(position: int, last: int) -> int:
        """Prefill up to row `last`, the end compared."""
        while position < last:
            width = min(chunk, last - position)
            position = feed(width, position, compare=position + width == last)
        return position

    room = range(position + widest, contract.capacity - spare - widest + 1)
    for edge in [span for span in contract.spans if span in room][:1]:
        feed(widest, walk(position, edge - widest), poison=True)  # the last that the shorter span holds
        feed(widest, edge - 1, poison=True)  # one row on either side, garbage behind them
        # rolled back to the shorter span, and over again
        position = feed(1, feed(2, edge - 2, poison=True), poison=True)

    last = min(contract.capacity - spare, max(FAR, window + chunk)) - 2 * widest - 2
    if position <= last:
        feed(widest, reject(feed(1, walk(position, last))))
    return steps


def contexts(steps: list[Step]) -> Iterator[NDArray[np.int64]]:
    """For each step the whole sequence that its last row has seen: what a model without a cache is fed."""
    rows = np.zeros(0, np.int64)
    for step in steps:
        rows = np.concatenate([rows[: step.position], step.tokens])
        yield rows


def max_error(decoder: Decoder, reference: list[ReferenceStep]) -> float:
    """Largest |difference| of a logit, in standard deviations of the reference's logits; infinite for NaN."""
    decoder.overwrite_rows(0, 0.0)
    spread = float(np.std(np.concatenate([entry.logits for entry in reference])))
    worst = 0.0
    for entry in reference:
        if entry.step.poison:
            decoder.overwrite_rows(entry.step.position, POISON)
        logits = decoder.step(entry.step.tokens.tolist(), entry.step.position)
        if not entry.step.rows:
            continue
        difference = float(np.abs(logits - entry.logits).max())
        worst = max(worst, difference if np.isfinite(difference) else np.inf)
    decoder.overwrite_rows(0, 0.0)
    return worst / spread if spread else np.inf


def arithmetic(spec: ModelSpec, contract: Contract) -> Arithmetic:
    """What the model's graphs compute in, run as they are."""
    return contract.precision if spec.format == "float" else spec.format


def measure_decoder(
    decoder: Decoder, reference: list[ReferenceStep], engine: str, dialect: str, role: str, arithmetic: Arithmetic
) -> Proof:
    rows, length = sum(entry.step.rows for entry in reference), max(entry.step.end for entry in reference)
    return Proof(engine, dialect, role, rows, length, max_error(decoder, reference), LOGIT_TOLERANCE[arithmetic])


def prove_decoder(
    decoder: Decoder, reference: list[ReferenceStep], engine: str, dialect: str, role: str, arithmetic: Arithmetic
) -> Proof:
    """Raises `ProofError` when the decoder strays from the reference by more than the tolerance of its arithmetic."""
    proof = measure_decoder(decoder, reference, engine, dialect, role, arithmetic)
    if not proof.passed:
        raise ProofError(
            f"{role} on {engine} ({dialect}): logits are {proof.max_error:.2g} standard deviations off the "
            "Hugging Face model's, "
            f"{proof.tolerance:.0g} is allowed; report this with the checkpoint's config.json"
        )
    return proof


def save_reference(path: Path, reference: list[ReferenceStep]) -> None:
    arrays: dict[str, NDArray[np.generic]] = {}
    for index, entry in enumerate(reference):
        arrays[f"{index}.tokens"] = entry.step.tokens
        arrays[f"{index}.place"] = np.array([entry.step.position, entry.step.rows, entry.step.poison])
        arrays[f"{index}.logits"] = entry.logits
    np.savez(path, allow_pickle=False, **arrays)


def load_reference(path: Path) -> list[ReferenceStep]:
    with np.load(path, allow_pickle=False) as arrays:
        return [_entry(arrays, index) for index in range(len(arrays.files) // 3)]


def _entry(arrays: Mapping[str, NDArray[np.generic]], index: int) -> ReferenceStep:
    position, rows, poison = (int(value) for value in arrays[f"{index}.place"])
    step = Step(arrays[f"{index}.tokens"].astype(np.int64), position, rows, bool(poison))
    return ReferenceStep(step, arrays[f"{index}.logits"].astype(np.float32))
