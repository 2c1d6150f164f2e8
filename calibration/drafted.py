"""What calibration knows about one draft: requests recorded with it, costs of its rounds, and its confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..runtime.drafting.names import model_of
from ..runtime.policy.cost_model import Costs
from ..runtime.policy.survival import Survival
from .measuring.adaptive_replay import Reading
from .measuring.record import Record
from .measuring.traces import Guesser, Trace, cached
from .statistics.results import SignalQuality

# Records, and for each of them the features of its judged tokens.
Recorded = tuple[list[Record], list[NDArray[np.float16]]]


@dataclass(frozen=True)
class Drafted:
    """model: the draft's name, `NO_DRAFT` in a bundle without one. records: of all requests.

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

    def only(self, numbers: Sequence[int]) -> Drafted:
        """The same for the requests with these numbers only."""
        reading = self.reading
        if reading is not None:
            reading = replace(reading, logits=tuple(reading.logits[number] for number in numbers))
        guessers = {name: one.only(numbers) for name, one in self.guessers.items()}
        return replace(self, records=[self.records[number] for number in numbers], reading=reading, guessers=guessers)


def of_drafter(drafted: Sequence[Drafted], drafter: str) -> Drafted:
    """The one that `drafter` uses; the first for lookups alone."""
    return next((one for one in drafted if one.model == model_of(drafter)), drafted[0])


def beside_each_other(drafted: Sequence[Drafted]) -> list[Drafted]:
    """Each of them with the others as its `guessers`."""
    return [
        replace(one, guessers={other.model: other for other in drafted if other.model != one.model}) for one in drafted
    ]


def side_by_side(costs: Mapping[str, Costs]) -> dict[str, Costs]:
    """Costs by draft, as if the host had been as fast for each of them as it was for the first."""
    return {name: one.like(next(iter(costs.values()))) for name, one in costs.items()}
