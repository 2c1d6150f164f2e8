"""Is speculative greedy output the target's own? Two tiers (docs/losslessness.md).

L1  against plain decoding through the same width: the tokens must be equal. On a GPU, whose libraries promise nothing
    about the rows of one product, the first difference may fall as in L2, where the logits of the two rows differ.
L2  against plain decoding at width 1: the first difference may only fall where the target's two best logits lie no
    further apart than the logits of the two widths differ. On a GPU these may differ by twice what parity allows at
    most.

Both fail if one output merely ends before the other: rounding cannot explain that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...bundle import Contract
from ...engines.base import Decoder, Logits
from ...engines.catalogue import ENGINES
from ..drafting.names import check_drafter
from ..sampling.parameters import UNADJUSTED, SamplingParameters
from ..session import Session
from ..state.cached_decoder import CachedDecoder
from ..state.statistics import Statistics
from .parity import LOGIT_TOLERANCE


@dataclass(frozen=True)
class Equality:
    """same_width: equal to plain decoding at the same width; row_tie: L1 holds all the same, by a near tie of two rows.
    first_difference: index of the first token that differs from width 1, or that only one of the two outputs has; None
    if they are equal.

    margin: how far the output's token lies below the best one there, at width 1; delta: largest difference of a logit
    between the widths there; limit: the largest that is allowed. complete: neither output ends early. drafted: draft
    tokens of the speculative output; 0 proves nothing about drafting.
    """

    same_width: bool
    first_difference: int | None
    margin: float = 0.0
    delta: float = 0.0
    complete: bool = True
    drafted: int = field(default=0, compare=False)
    limit: float = math.inf
    row_tie: bool = False

    @property
    def near_tie(self) -> bool:
        # Either of the two can move by delta.
        tie = self.margin <= 2 * self.delta and self.delta <= self.limit
        return self.complete and (self.first_difference is None or tie)

    @property
    def passed(self) -> bool:
        return (self.same_width or self.row_tie) and self.near_tie


@dataclass(frozen=True)
class DecodedOutput:
    """widths[i]: width of the target's pass that token i came from; rows[i]: its row there. drafted: number of draft
    tokens, by round.
    """

    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    rows: tuple[int, ...]
    drafted: tuple[int, ...]
    statistics: Statistics


def decode_request(session: Session, prompt: Sequence[int], params: SamplingParameters) -> DecodedOutput:
    tokens: list[int] = []
    widths: list[int] = []
    rows: list[int] = []
    drafted: list[int] = []
    before, statistics = 0, Statistics()
    for chunk in session.stream(prompt, params):
        statistics = chunk.statistics
        drafted.append(statistics.drafted - before)
        before = statistics.drafted
        tokens += chunk.tokens
        widths += [drafted[-1] + 1] * len(chunk.tokens)
        rows += range(len(chunk.tokens))
    return DecodedOutput(tuple(tokens), tuple(widths), tuple(rows), tuple(drafted), statistics)


def check_equality(
    session: Session, prompt: Sequence[int], max_new_tokens: int, drafter: str | None = None
) -> Equality:
    """Generate greedily in three ways from `prompt` and compare. The session's cached prefix is lost.

    It drafts the bundle's maximum per round, by default with the first draft, whatever the policy says: so what today's
    policy leaves out is proved too.
    """
    params = SamplingParameters(
        **UNADJUSTED,
        stop_token_ids=(),
        max_new_tokens=max_new_tokens,
        drafter=check_drafter(drafter, session.bundle.manifest.draft_names),
        num_draft_tokens=session.max_draft_tokens,
    )
    try:
        session.reset()
        output = decode_request(session, prompt, params)
        session.reset()
        plain = session.generate(prompt, params, speculate=False).tokens
        equality = judge(session, prompt, plain, output.tokens, output.widths, rows=output.rows)
        return replace(equality, drafted=sum(output.drafted))
    finally:
        session.reset()


def judge(
    session: Session,
    prompt: Sequence[int],
    plain: Sequence[int],
    speculative: Sequence[int],
    widths: Sequence[int],
    stop_tokens: Collection[int] = (),
    rows: Sequence[int] = (),
) -> Equality:
    """Compare two greedy outputs. widths: of the target's pass that each speculative token came from; rows: its row
    there, which L1 needs on a GPU.

    stop_tokens: of both requests. Lengths may differ only after a first difference, if the shorter output ends with one
    of them. Writes into the target's cache without the session's knowledge: reset the session afterwards.
    """
    first = next((i for i, (ours, theirs) in enumerate(zip(speculative, plain, strict=False)) if ours != theirs), None)
    if len(speculative) != len(plain):
        shorter = min(speculative, plain, key=len)
        if first is None or shorter[-1] not in stop_tokens:
            return Equality(False, len(shorter) if first is None else first, complete=False)
    target, chunk = session.engine.target, session.bundle.manifest.contract.prompt_chunk
    feeding = target, len(prompt), chunk, session.capacity
    at_widths = plain_at_widths(target, prompt, widths, chunk, session.capacity)
    same_width, tolerance = tuple(speculative) == at_widths, _tolerance(session)
    rows_count = tolerance is not None and len(rows) > 0

    def compared(place: int, others: Sequence[int]) -> Equality:
        """At a place where the output differs from that of passes of the widths `others`, of which first rows count."""
        agreed = [*prompt, *speculative[:place]]
        first_rows = [0] * (place + 1)
        plainly = _logits_after(agreed, others, first_rows, *feeding)
        ours = _logits_after(agreed, widths, rows if rows_count else first_rows, *feeding)
        margin = float(plainly.max() - plainly[speculative[place]])
        # Parity allows either of the two to be as far from the reference.
        limit = 2 * (tolerance or math.inf) * float(np.std(plainly[plainly > -np.inf]))
        return Equality(same_width, place, margin, float(np.abs(plainly - ours).max()), limit=limit)

    row_tie = False
    if rows_count and not same_width:
        place = next(i for i, (ours, theirs) in enumerate(zip(speculative, at_widths, strict=True)) if ours != theirs)
        row_tie = compared(place, widths).near_tie
    if first is None:
        return Equality(same_width, None, row_tie=row_tie)
    return replace(compared(first, [1] * (first + 1)), row_tie=row_tie)


def _tolerance(session: Session) -> float | None:
    """How far a right pass of a GPU may be from the reference, in standard deviations; infinite where the model rounds
    activations. None on a CPU, whose rows are exact.
    """
    manifest, info = session.bundle.manifest, ENGINES.get(session.engine.name)
    if info is None or not info.on_gpu:
        return None
    return LOGIT_TOLERANCE[manifest.contract.precision] if manifest.target.rounding is None else math.inf


def plain_at_widths(
    target: Decoder, prompt: Sequence[int], widths: Sequence[int], chunk: int, capacity: int
) -> tuple[int, ...]:
    """Greedy tokens from the target alone, one per pass of each width, of which only the first row is used.

    Near the capacity, where a width no longer fits, passes are as wide as they can be.
    """
    CachedDecoder(target, chunk).prefill(prompt, len(prompt) - 1)
    tokens = list(prompt)
    for width in widths:
        tokens.append(int(_step_at_width(target, tokens, width, capacity).argmax()))
    return tuple(tokens[len(prompt) :])


def _logits_after(
    tokens: Sequence[int],
    widths: Sequence[int],
    rows: Sequence[int],
    target: Decoder,
    prompt_length: int,
    chunk: int,
    capacity: int,
) -> Logits:
    """The logits `[vocab]` that follow `tokens`, fed in the passes that they came from; what these rejected is padding.

    widths, rows: as of `judge`; rows of 0 alone feed as `plain_at_widths` does.
    """
    CachedDecoder(target, chunk).prefill(tokens, prompt_length - 1)
    index, last = 0, len(tokens) - prompt_length
    while True:
        count = next((i for i in range(index + 1, last + 1) if rows[i] == 0), last + 1) - index
        start = prompt_length + index - 1
        logits = _step_at_width(target, tokens[: start + count], widths[index], capacity, count)
        index += count
        if index > last:
            return logits.copy()


def _step_at_width(target: Decoder, tokens: Sequence[int], width: int, capacity: int, count: int = 1) -> Logits:
    """Feed the last `count` of `tokens`, padded to `width`; the logits `[vocab]` that follow them."""
    position = len(tokens) - count
    padding = [tokens[-1]] * (min(width, capacity - position) - count)
    logits: Logits = target.step([*tokens[position:], *padding], position)[count - 1]
    return logits


@dataclass(frozen=True)
class RowExactness:
    """Whether a row has the same bits wherever in a pass it stands. rows: compared; exact: those with the same bits;
    delta: the largest difference of a logit, in standard deviations.
    """

    rows: int
    exact: int
    delta: float


def measure_rows(target: Decoder, tokens: Sequence[int], contract: Contract) -> RowExactness:
    """Compare the rows of passes over `tokens` with first rows of passes as wide. The cache is overwritten."""
    differences: list[float] = []
    for width in sorted({2, contract.widest_step} - {1}):
        CachedDecoder(target, contract.prompt_chunk).prefill(tokens, 1)
        for start in range(1, len(tokens) - width + 1, width):
            among = target.step(tokens[start : start + width], start).copy()
            for row in range(1, width):
                alone = _step_at_width(target, tokens[: start + row + 1], width, contract.capacity)
                spread = float(np.std(alone[alone > -np.inf])) or 1.0
                same = among[row].tobytes() == alone.tobytes()
                differences.append(0.0 if same else float(np.abs(among[row] - alone).max()) / spread)
    return RowExactness(len(differences), differences.count(0.0), max(differences, default=0.0))
