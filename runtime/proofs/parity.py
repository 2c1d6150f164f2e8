"""The proof of a compiled model graph: its logits are compared with those recorded from the Hugging Face model.

The schedule goes through everything that the loop does to a cache. Near the start: chunked prefill with an odd last
chunk, steps of width 1 and 2, a draft that is verified and rejected, whose rows are poisoned and rewritten, and every
width up to k + 1. Then over a step of the ladder of spans and back. Then far out, beyond any sliding window: prefill in
whole chunks, and again a rejected draft.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...bundle import Contract, ModelSpec, Precision, Proof
from ...engines.base import Decoder, Logits, OpenedDraft, Reader
from ...errors import ProofError

# The arithmetic of a graph: its own precision, or widened to fp32 over weights in half precision.
Exact = Precision | Literal["widened"]
# The reference is evaluated in fp32 (`exporter/proving/prove.py`). Measured over tiny models of 23 families and the
# demo pair, correct graphs are off by up to: fp32 1e-5; widened 6e-3, by constants that tracing in half precision
# rounds; fp16 1.4e-2; bf16, rounded after every operator, 1.5e-1 (0.6 where a mixture of experts then chooses another
# expert). Trained and deeper models get some margin. A wrong mask, window or position is off by 2 and more in every one
# of them.
LOGIT_TOLERANCE: dict[Exact, float] = {"fp32": 1e-3, "widened": 2e-2, "fp16": 1e-1, "bf16": 5e-1}
# Large and finite: under an explicit mask a poisoned row has weight 0, and 0 * NaN would still poison.
POISON = 1e4
# Sequences are proved up to this length, and farther if a sliding window only begins there to hide rows beyond it.
FAR = 512
# If the reference is rounded, so many more rows are compared, over a text: the figures are means, and rows differ. They
# take at most so many bytes of the bundle.
READ_ROWS = 64
READ_BYTES = 16_000_000


@dataclass(frozen=True)
class Rounding:
    """The arithmetic of a graph that rounds activations, as its reference does.

    A value at the edge of a quantization step falls to either side, and what follows is rounded from there: two correct
    models end up as far apart as two draws of the rounding, and their largest difference shows how much the model
    amplifies it. (int8 is off by 1e-5 standard deviations with one layer, by 3e-1 with 24 random ones, by 1.2 on
    SmolLM2-135M.) The build proves that each layer is correct (`exporter/proving/prove_layers.py`); here the mean
    divergence is compared. divergence: of the rounded reference from the model before it, or its caches, were
    quantized, in nats; exact: the arithmetic of everything else.
    """

    divergence: float
    exact: Exact

    def allowed(self, spread: float) -> float:
        """How many nats a correct graph may be off the reference. spread: the standard deviation of the reference's
        logits.

        For nearby distributions the root of the divergence is a distance. A graph and its reference, each as far from
        the exact model as rounding takes it, are at most twice that far apart (1.4 times if their roundings are
        independent). The tolerance of everything else is added: logits that differ by at most d diverge by at most d^2
        / 2 (Hoeffding's lemma).
        """
        other = LOGIT_TOLERANCE[self.exact] * spread / math.sqrt(2)
        return (2 * math.sqrt(self.divergence) + other) ** 2


Arithmetic = Exact | Rounding


@dataclass(frozen=True)
class Step:
    """Feed `tokens [T]` at `position`, and compare `rows` logits, counted from the last.

    `poison` first fills every row from the position on with garbage.
    hidden: of a draft that reads the target's hidden states, those of the rows, `[T, F]`; None in a step of one drafted
    token, whose row reads what the one before it gave back.
    """

    tokens: NDArray[np.int64]
    position: int
    rows: int
    poison: bool = False
    hidden: NDArray[np.float32] | None = None

    @property
    def end(self) -> int:
        return self.position + len(self.tokens)


@dataclass(frozen=True)
class ReferenceStep:
    """confidence `[rows]`: logits of the probability that the tokens drawn are accepted, where the draft gives them."""

    step: Step
    logits: Logits  # [rows, vocab]
    confidence: NDArray[np.float32] | None = None


def schedule(
    contract: Contract,
    vocab_size: int,
    window: int = 0,
    spare: int = 0,
    text: Sequence[int] = (),
    has_states: bool = False,
) -> list[Step]:
    """The steps of the proof, with tokens from a fixed seed, or from `text`, repeated, if there is one.

    window: the model's largest sliding window. spare: rows at the end of the capacity that no step writes. With a text,
    its beginning is also read by verify passes, all rows compared. has_states: for a model that is rolled back into its
    last pass at most; then every number of accepted rows comes once more.
    """
    draw = _tokens(vocab_size, text)
    widest, chunk = contract.widest_step, contract.prompt_chunk
    steps: list[Step] = []

    def put(tokens: NDArray[np.int64], position: int, poison: bool = False, compare: bool = True) -> int:
        width = len(tokens)
        rows = (width if width <= widest else 1) if compare else 0
        steps.append(Step(tokens, position, rows, poison))
        return position + width

    def feed(width: int, position: int, poison: bool = False, compare: bool = True) -> int:
        return put(draw(width), position, poison, compare)

    def reject(position: int) -> int:
        feed(widest, position)  # k draft tokens, of which
        return feed(widest, position + 1, poison=True)  # only the fed token is accepted

    position = feed(min(chunk, (contract.capacity - spare) // 4), 0)
    position = feed(min(chunk, (contract.capacity - spare) // 4) // 2 + 1, position)
    position = feed(1, feed(1, position))
    position = feed(2, position - 1)  # the draft's first step rewrites the last row
    position = reject(position) - widest + 1
    turns = draw(widest), draw(widest)  # other tokens than in the pass before, in few sequences: a reference reads each
    for width in range(1, widest + 1):
        put(turns[width % 2][:width], position, poison=True)  # every width over the same, rewritten rows

    for accepted in range(1, widest + 1) if has_states else ():
        if position + accepted + 2 * widest <= contract.capacity - spare:
            feed(widest, position, poison=True)
            position += accepted

    def walk(position: int, last: int) -> int:
        """Prefill up to row `last`, the end compared."""
        while position < last:
            width = min(chunk, last - position)
            position = feed(width, position, compare=position + width == last)
        return position

    room = range(position + widest, contract.capacity - spare - widest + 1)
    for edge in [span for span in contract.spans if span in room][:1]:
        feed(widest, walk(position, edge - widest), poison=True)  # the last one that the shorter span holds
        feed(widest, edge - 1, poison=True)  # one row on either side, garbage after them
        # rolled back to the shorter span, and over again
        position = feed(1, feed(2, edge if has_states else edge - 2, poison=True), poison=True)

    last = min(contract.capacity - spare, max(FAR, window + chunk)) - 2 * widest - 2
    if position <= last:
        feed(widest, reject(feed(1, walk(position, last))))
    if text:
        draw = _tokens(vocab_size, text)
        read = min(READ_ROWS, READ_BYTES // (4 * vocab_size), contract.capacity - spare, len(text))
        position = 0
        while position + widest <= read:
            position = feed(widest, position)
    return steps


def _tokens(vocab_size: int, text: Sequence[int]) -> Callable[[int], NDArray[np.int64]]:
    """Returns the next `count` tokens."""
    if not text:
        rng = np.random.default_rng(0)
        return lambda count: rng.integers(0, vocab_size, count)
    endless = itertools.cycle(text)
    return lambda count: np.fromiter(itertools.islice(endless, count), np.int64, count)


def contexts(steps: list[Step]) -> Iterator[NDArray[np.int64]]:
    """For each step the whole sequence that its last row has seen, the input of a model without a cache."""
    rows = np.zeros(0, np.int64)
    for step in steps:
        rows = np.concatenate([rows[: step.position], step.tokens])
        yield rows


@dataclass(frozen=True)
class Divergence:
    """Over `rows` rows. nats: the mean KL divergence. agreement: the fraction of rows whose likeliest token is the
    same.
    """

    rows: int
    nats: float
    agreement: float


def divergence(pairs: Iterable[tuple[Logits, Logits]]) -> Divergence:
    """The divergence of the second from the first of each pair of logits `[R, vocab]`; NaN for logits that are not
    numbers.
    """
    rows, total, agreed = 0, 0.0, 0
    for wanted, actual in pairs:
        for one, other in zip(wanted, actual, strict=True):
            exact, ours = _log_probs(one), _log_probs(other)
            probable = exact > -np.inf  # tokens banned in both do not differ
            total += float(np.exp(exact[probable]) @ (exact[probable] - ours[probable]))
            agreed += int(np.argmax(one) == np.argmax(other))
            rows += 1
    nats = total / rows if rows else 0.0
    return Divergence(rows, nats if not nats < 0 else 0.0, agreed / rows if rows else 1.0)  # NaN stays


def _log_probs(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - np.max(logits)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def max_error(decoder: Decoder, reference: list[ReferenceStep], reader: Reader | None = None) -> float:
    """Largest |difference| of a logit, in standard deviations of the reference's logits; infinite for NaN."""
    return largest_error(reference, list(logits_of(decoder, reference, reader)))


def logits_of(decoder: Decoder, reference: list[ReferenceStep], reader: Reader | None = None) -> Iterator[Logits]:
    """The decoder's logits `[rows, vocab]` of every step. reader: the decoder's, where it reads hidden states."""
    decoder.overwrite_rows(0, 0.0)
    for entry in reference:
        if entry.step.poison:
            decoder.overwrite_rows(entry.step.position, POISON)
        if entry.step.hidden is not None and reader is not None:
            reader.read(entry.step.hidden)
        elif reader is not None:
            reader.read_back()
        logits = decoder.step(entry.step.tokens.tolist(), entry.step.position)
        yield logits[len(logits) - entry.step.rows :].copy()
    decoder.overwrite_rows(0, 0.0)


def spread(reference: Sequence[ReferenceStep]) -> float:
    """The standard deviation of the reference's logits."""
    logits = np.concatenate([entry.logits for entry in reference])
    return float(np.std(logits[logits > -np.inf]))  # tokens that a draft cannot propose have no numbers


def largest_error(reference: Sequence[ReferenceStep], answers: Sequence[Logits]) -> float:
    """|difference| of a logit, in standard deviations of the reference's; infinite for NaN."""
    deviation = spread(reference)
    worst = float(np.max([_difference(entry.logits, ours) for entry, ours in zip(reference, answers, strict=True)]))
    return worst / deviation if deviation and np.isfinite(worst) else np.inf


def _difference(wanted: Logits, actual: Logits) -> float:
    """Infinite where one may be proposed and the other not, NaN for values that are not numbers."""
    both = (wanted == -np.inf) & (actual == -np.inf)
    return float(np.abs(np.subtract(actual, wanted, out=np.zeros_like(wanted), where=~both)).max(initial=0.0))


def arithmetic(spec: ModelSpec, contract: Contract) -> Arithmetic:
    """The arithmetic of the model's graphs, run unchanged."""
    return contract.precision if spec.rounding is None else Rounding(spec.rounding, contract.precision)


def measure(
    model: OpenedDraft, reference: list[ReferenceStep], where: tuple[str, str], role: str, kind: Arithmetic
) -> list[Proof]:
    """Of the logits and, where the reference has some, of the confidences that come with the tokens.

    model: a target or a draft. where: engine and dialect. kind: the arithmetic of the graph.
    """
    answers, told = list[Logits](), list[Logits]()
    for entry, logits in zip(reference, logits_of(model.decoder, reference, model.reader), strict=True):
        answers.append(logits)
        if entry.confidence is not None:
            confidence = model.confidence() if model.confidence else np.nan
            told.append(_as_logits(np.full(entry.step.rows, confidence, np.float32)))
    proofs = [_compared(reference, answers, where, role, kind)]
    recorded = [ReferenceStep(one.step, _as_logits(one.confidence)) for one in reference if one.confidence is not None]
    if recorded:
        proofs.append(_compared(recorded, told, (where[0], f"{where[1]}, confidences"), role, kind))
    return proofs


def _as_logits(confidences: NDArray[np.float32]) -> Logits:
    """A confidence is a logit against 0; the 1 beside them keeps the spread from 0 where all confidences are."""
    return np.stack([confidences, np.zeros_like(confidences), np.ones_like(confidences)], 1)


def _compared(
    reference: Sequence[ReferenceStep], answers: Sequence[Logits], where: tuple[str, str], role: str, kind: Arithmetic
) -> Proof:
    apart = divergence(zip((entry.logits for entry in reference), answers, strict=True))
    return Proof(
        *where,
        role,
        rows=apart.rows,
        length=max(entry.step.end for entry in reference),
        max_error=largest_error(reference, answers),
        tolerance=None if isinstance(kind, Rounding) else LOGIT_TOLERANCE[kind],
        divergence=apart.nats,
        divergence_tolerance=kind.allowed(spread(reference)) if isinstance(kind, Rounding) else None,
    )


def passed(proof: Proof, remedy: str = "report this with the checkpoint's config.json") -> Proof:
    """Raises `ProofError` where what was compared differs by more than is allowed."""
    if not proof.passed:
        what = "confidences" if proof.dialect.endswith("confidences") else "logits"
        raise ProofError(
            f"{proof.role} on {proof.engine} ({proof.dialect}): {what} are {proof.measure} the Hugging Face model's"
            f"{' under the same rounding' if proof.tolerance is None else ''}, {proof.limit} is allowed; {remedy}"
        )
    return proof
