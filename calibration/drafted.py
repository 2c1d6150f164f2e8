"""What calibration knows about one draft: requests recorded with it, costs of its rounds, and its confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle
from ..runtime.drafting.names import FIRST, model_of
from ..runtime.policy.cost_model import CostPoint, Costs, DraftCosts, MeasuredTime
from ..runtime.policy.survival import Survival
from .measuring.adaptive_replay import Reading
from .measuring.record import Record
from .measuring.traces import Guesser, Trace, cached
from .statistics.results import SignalQuality

# Records, and for each of them the features of its judged tokens.
Recorded = tuple[list[Record], list[NDArray[np.float16]]]


@dataclass(frozen=True)
class Drafted:
    """model: `model` for the bundle's first draft, even if there is none. records: of all requests.

    reading, survival: of its confidence, None if that is not read. guessers: the other drafts, which may guess for this
    one, by name.
    """

    model: str
    records: Sequence[Record]
    costs: Costs
    reading: Reading | None = None
    survival: Survival | None = None
    signals: tuple[SignalQuality, ...] = ()
    guessers: Mapping[str, Drafted] = field(default_factory=dict)

    @property
    def traces(self) -> list[Trace]:
        ats = {name: cached(one.costs) for name, one in self.guessers.items()}
        found = []
        for number, record in enumerate(self.records):
            guessers = {name: Guesser(one.records[number].trace, ats[name]) for name, one in self.guessers.items()}
            found.append(replace(record.trace, guessers=guessers))
        return found

    def asked_by(self, drafters: Sequence[str]) -> tuple[str, ...]:
        """Those of `drafters` that use this draft; for the first draft, also lookups without a model."""
        return tuple(drafter for drafter in drafters if (model_of(drafter) or FIRST) == self.model)

    def only(self, numbers: Sequence[int]) -> Drafted:
        """The same for the requests with these numbers only."""
        reading = self.reading
        if reading is not None:
            reading = replace(reading, logits=tuple(reading.logits[number] for number in numbers))
        guessers = {name: one.only(numbers) for name, one in self.guessers.items()}
        return replace(self, records=[self.records[number] for number in numbers], reading=reading, guessers=guessers)


def beside_each_other(drafted: Sequence[Drafted]) -> list[Drafted]:
    """Each of them with the others as its `guessers`."""
    return [
        replace(one, guessers={other.model: other for other in drafted if other.model != one.model}) for one in drafted
    ]


def joined_costs(bundle: Bundle, found: Mapping[str, Costs]) -> Costs:
    """The costs of the bundle's first draft, with those of the other drafts inside. found: costs by draft model.

    The costs of the others are scaled so that their plain rounds take as long as those of the first: drafts are
    compared with each other, and the host may have been slower while one of them was measured.
    """
    first, drafts = found[FIRST], {}
    for name, costs in found.items():
        if name != FIRST:
            weights = bundle.manifest.files[bundle.manifest.more_drafts[name].model.weights].sha256
            pairs = zip(costs.points, first.points, strict=True)
            points = tuple(_scaled(own, of.rounds[0].median / own.rounds[0].median) for own, of in pairs)
            drafts[name] = DraftCosts(weights, costs.draft_prefill, points, costs.draft_row)
    return replace(first, drafts=drafts)


def _scaled(point: CostPoint, factor: float) -> CostPoint:
    def time(one: MeasuredTime) -> MeasuredTime:
        return MeasuredTime(factor * one.median, factor * one.p10, factor * one.p90)

    def times(many: tuple[MeasuredTime, ...]) -> tuple[MeasuredTime, ...]:
        return tuple(map(time, many))

    return CostPoint(point.context, times(point.rounds), time(point.draft), times(point.verify), times(point.host))
