from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from specexport.bundle import Contract, Proof
from specexport.engines.base import OpenedDraft
from specexport.errors import ProofError
from specexport.runtime.proofs.parity import (
    LOGIT_TOLERANCE,
    Arithmetic,
    ReferenceStep,
    Rounding,
    contexts,
    divergence,
    max_error,
    measure,
    passed,
    schedule,
)
from specexport.runtime.proofs.reference_file import load_reference, save_reference
from support.doubles import FakeDecoder
from support.refusals import refused

CONTRACT = Contract(capacity=40, max_draft_tokens=3, prompt_chunk=8, precision="fp32")
VOCAB = 11


class NotANumber(FakeDecoder):
    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        logits = super().logits_after(context).copy()
        logits[0] = np.nan
        return logits


def reference_of(contract: Contract = CONTRACT) -> list[ReferenceStep]:
    """What a model without a cache gives, from the fake's pure function."""
    decoder, steps = FakeDecoder(contract, VOCAB), schedule(contract, VOCAB)
    entries = []
    for step, context in zip(steps, contexts(steps), strict=True):
        rows = [decoder.logits_after(context[: row + 1]) for row in range(len(context) - step.rows, len(context))]
        entries.append(ReferenceStep(step, np.array(rows, np.float32).reshape(step.rows, VOCAB)))
    return entries


def prove(decoder: FakeDecoder, reference: list[ReferenceStep] | None = None, arithmetic: Arithmetic = "fp32") -> Proof:
    (proof,) = measure(OpenedDraft(decoder), reference or reference_of(), ("fake", "ort"), "draft", arithmetic)
    return passed(proof)


class OffByOne(FakeDecoder):
    def write(self, tokens: Sequence[int], position: int) -> None:
        super().write(tokens, min(position + 1, self.contract.capacity - len(tokens)))


class NeverRewrites(FakeDecoder):
    def write(self, tokens: Sequence[int], position: int) -> None:
        for row, token in enumerate(tokens, position):
            if self.rows[row] < 0:
                self.rows[row] = token


class SeesStaleRows(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows


class SeesTheNextRow(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows[: row + 2]


class ForgetsTheFirstRow(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows[min(1, row) : row + 1]


class SlidingWindow(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows[max(0, row - 12) : row + 1]


class Appends(FakeDecoder):
    """Keeps its own position and never rolls back."""

    end = 0

    def write(self, tokens: Sequence[int], position: int) -> None:
        self.end = max(self.end, position) if self.end < position else self.end
        start = min(self.end, self.contract.capacity - len(tokens))
        super().write(tokens, start)
        self.end += len(tokens)


class LeakyMask(FakeDecoder):
    """Rows beyond the position weigh next to nothing: only large values in them show."""

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        logits = super().step(tokens, position)
        logits += np.float32(1e-6 * np.abs(self.rows[position + len(tokens) :]).sum())
        return logits


class SlightlyOff(FakeDecoder):
    error = 0.0

    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        return super().logits_after(context) + np.float32(self.error)


def test_a_right_decoder_is_proved() -> None:
    reference = reference_of()
    decoder = FakeDecoder(CONTRACT, VOCAB)
    proof = prove(decoder, reference)
    assert (proof.engine, proof.dialect, proof.role) == ("fake", "ort", "draft")
    assert proof.max_error == 0.0
    assert proof.rows == sum(len(entry.logits) for entry in reference)
    assert not decoder.rows[:].max() > 0  # nothing of the proof is left in the cache


@pytest.mark.parametrize(
    "wrong",
    [OffByOne, NeverRewrites, SeesStaleRows, SeesTheNextRow, ForgetsTheFirstRow, SlidingWindow, LeakyMask, Appends],
)
def test_a_wrong_decoder_is_caught(wrong: type[FakeDecoder]) -> None:
    with refused(ProofError, "config.json", "0.001"):
        prove(wrong(CONTRACT, VOCAB))


LADDER = Contract(capacity=80, max_draft_tokens=3, prompt_chunk=8, precision="fp32")


@pytest.fixture
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder of 16, 32, 64, 80 instead of one that starts at 512."""
    monkeypatch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 16)


class StaysOnTheFirstSpan(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows[: min(row + 1, self.contract.spans[0])]


class ClimbsARowTooLate(FakeDecoder):
    """Looks at the span of the row in front of its last."""

    def seen(self, row: int) -> np.ndarray:
        end = sum(map(int, self.steps[-1]))
        return self.rows[: min(row + 1, self.contract.span(max(1, end - 1)))]


class StaysOnTheSpanItClimbedTo(FakeDecoder):
    """Once on a span, it takes all of it for written."""

    def seen(self, row: int) -> np.ndarray:
        reached = max(self.contract.span(position + count) for count, position in self.steps)
        over = reached > self.contract.span(sum(self.steps[-1]))
        return self.rows[: reached if over else row + 1]


@pytest.mark.usefixtures("short_spans")
def test_a_step_of_the_ladder_is_climbed_twice_with_garbage_behind() -> None:
    steps = schedule(LADDER, VOCAB)
    spans = [LADDER.span(step.end) for step in steps]
    climbs = [index for index in range(1, len(steps)) if spans[index] > spans[index - 1]]
    back = next(index for index in range(1, len(steps)) if spans[index] < spans[index - 1])
    assert any(index < back for index in climbs)
    assert back + 1 in climbs
    edge = spans[back]
    assert steps[back].end == edge  # the last row of the shorter span
    assert steps[back - 1].position < edge < steps[back - 1].end  # a step with rows on both sides
    assert all(step.poison and step.rows == len(step.tokens) for step in steps[back - 2 : back + 2])


@pytest.mark.usefixtures("short_spans")
@pytest.mark.parametrize("wrong", [StaysOnTheFirstSpan, ClimbsARowTooLate, StaysOnTheSpanItClimbedTo])
def test_a_decoder_that_is_wrong_about_spans_is_caught(wrong: type[FakeDecoder]) -> None:
    reference = reference_of(LADDER)
    prove(FakeDecoder(LADDER, VOCAB), reference)
    with pytest.raises(ProofError):
        prove(wrong(LADDER, VOCAB), reference)


@pytest.mark.parametrize("arithmetic", LOGIT_TOLERANCE)
def test_each_arithmetic_has_a_tolerance_of_its_own(arithmetic: Arithmetic) -> None:
    reference, tolerance = reference_of(), LOGIT_TOLERANCE[arithmetic]
    assert tolerance < 1  # what is wrong is off by whole standard deviations
    decoder = SlightlyOff(CONTRACT, VOCAB)
    decoder.error = 0.8 * tolerance
    assert prove(decoder, reference, arithmetic).tolerance == tolerance
    decoder.error = 1.3 * tolerance
    with pytest.raises(ProofError):
        prove(decoder, reference, arithmetic)


@pytest.mark.parametrize("drafts", [1, 2, 3, 4, 7, 16, 32])
@pytest.mark.parametrize("chunk", [1, 2, 3, 8, 64, 512])
def test_the_schedule_stays_within_every_capacity(drafts: int, chunk: int) -> None:
    accepted = 0
    for capacity in range(1, 160):
        try:
            contract = Contract(capacity, drafts, chunk, "fp32")
        except ValueError:
            continue
        accepted += 1
        steps = schedule(contract, VOCAB)
        assert max(step.position + len(step.tokens) for step in steps) <= capacity
        assert {len(step.tokens) for step in steps} >= set(range(1, contract.widest_step + 1))
    assert accepted


def test_the_schedule_rolls_back_poisons_and_stays_without_gaps() -> None:
    steps = schedule(CONTRACT, VOCAB)
    end, rolled_back = 0, 0
    for step in steps:
        assert step.position <= end
        rolled_back += step.position < end
        assert ((step.tokens >= 0) & (step.tokens < VOCAB)).all()
        end = max(end, step.position + len(step.tokens))
    assert rolled_back >= CONTRACT.widest_step
    assert sum(step.poison for step in steps) >= CONTRACT.widest_step
    assert any(len(step.tokens) > CONTRACT.widest_step for step in steps)
    rounds = [pair for pair in pairwise(steps) if len(pair[0].tokens) == len(pair[1].tokens) == CONTRACT.widest_step]
    rejected = [after.poison for before, after in rounds if after.position == before.position + 1]
    assert rejected
    assert all(rejected), "rejected rows are filled with garbage before the next round"
    again = schedule(CONTRACT, VOCAB)
    assert all((a.tokens == b.tokens).all() for a, b in zip(steps, again, strict=True))


def test_every_width_rewrites_tokens_that_the_pass_before_did_not_have() -> None:
    steps, widest = schedule(CONTRACT, 100_000), CONTRACT.widest_step
    first = next(
        number
        for number in range(len(steps))
        if [len(step.tokens) for step in steps[number : number + widest]] == [*range(1, widest + 1)]
        and len({step.position for step in steps[number : number + widest]}) == 1
    )
    rewritten = steps[first : first + widest]
    assert all(step.poison and step.rows == len(step.tokens) for step in rewritten)
    for before, after in pairwise(rewritten):
        assert (before.tokens != after.tokens[: len(before.tokens)]).all()
    for before, after in zip(rewritten, rewritten[2:], strict=False):  # so that a reference reads two sequences
        assert (before.tokens == after.tokens[: len(before.tokens)]).all()


def test_reference_round_trip(tmp_path: Path) -> None:
    reference = reference_of()
    save_reference(tmp_path / "r.npz", reference)
    loaded = load_reference(tmp_path / "r.npz")
    assert len(loaded) == len(reference)
    for ours, theirs in zip(reference, loaded, strict=True):
        assert (ours.step.tokens == theirs.step.tokens).all()
        assert (ours.step.position, ours.step.poison) == (theirs.step.position, theirs.step.poison)
        assert (ours.logits == theirs.logits).all()
        assert theirs.logits.dtype == np.float32


class OneTokenOff(FakeDecoder):
    error = 0.0

    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        logits = super().logits_after(context).copy()
        logits[0] += self.error
        return logits


def test_a_rounded_graph_is_judged_by_its_mean_divergence() -> None:
    reference, decoder = reference_of(), OneTokenOff(CONTRACT, VOCAB)
    decoder.error = 0.5

    def judged(rounding: float) -> Proof:
        kind = Rounding(rounding, "fp32")
        (proof,) = measure(OpenedDraft(decoder), reference, ("fake", "ort"), "target", kind)
        return proof

    found = judged(1.0)
    assert found.max_error > 100 * LOGIT_TOLERANCE["fp32"]  # which is not asked
    assert found.tolerance is None
    assert found.divergence > 1e-3
    assert judged(found.divergence / 3.9).passed
    assert not judged(found.divergence / 4.5).passed
    with pytest.raises(ProofError, match="nats off the Hugging Face model's under the same rounding"):
        prove(decoder, reference, Rounding(0.0, "fp32"))


@pytest.mark.parametrize(("vocab", "read"), [(VOCAB, 36), (200_000, 20), (10_000_000, 0)])
def test_a_text_is_read_besides_as_far_as_its_logits_are_small(vocab: int, read: int) -> None:
    """In whole passes of k + 1 tokens, within the capacity of 40 but one."""
    plain = schedule(CONTRACT, vocab, spare=1)
    told = schedule(CONTRACT, vocab, spare=1, text=tuple(range(3, 60)))
    assert [(step.position, step.rows) for step in told[: len(plain)]] == [(step.position, step.rows) for step in plain]
    assert [step.position for step in told[len(plain) :]] == list(range(0, read, CONTRACT.widest_step))
    assert all(step.rows == CONTRACT.widest_step for step in told[len(plain) :])
    text = [token for step in told[len(plain) :] for token in step.tokens.tolist()]
    assert text == list(range(3, 3 + read))


def test_not_a_number_is_infinitely_wrong() -> None:
    assert max_error(NotANumber(CONTRACT, VOCAB), reference_of()) == np.inf
    with refused(ProofError):
        prove(NotANumber(CONTRACT, VOCAB))


def test_divergence_is_the_mean_over_rows() -> None:
    one = np.log(np.array([[0.5, 0.5], [0.5, 0.5]], np.float32))
    other = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)) + np.float32(3)
    found = divergence([(one, other)])
    assert found.rows == 2
    assert found.nats == pytest.approx(0.5 * (0.5 * math.log(2) + 0.5 * math.log(2 / 3)), rel=1e-5)
    assert found.agreement == 0.5


def test_the_divergence_of_nan_is_nan() -> None:
    assert math.isnan(divergence([(np.zeros((1, 2), np.float32), np.array([[np.nan, 0]], np.float32))]).nats)
