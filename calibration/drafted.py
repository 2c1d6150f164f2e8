"""What calibration knows about one draft: requests recorded with it, costs of its rounds, and its confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..bundle import NO_DRAFT
from ..bundle.drafts import LOOKUP
from ..runtime.drafting.names import model_of
from ..runtime.policy.cost_model import Costs
from .measuring.confidence import Reading
from .measuring.record import Record
from .measuring.traces import Trace
from .statistics.results import EstimateQuality


@dataclass(frozen=True)
class Drafted:
    """model: the draft's name, `NO_DRAFT` in a bundle without one. records: of all requests.

    reading: of its confidence, None if that is not read. estimate: see `Analysis`.
    """

    model: str
    records: Sequence[Record]
    costs: Costs
    reading: Reading | None = None
    estimate: EstimateQuality | None = None

    @property
    def drafter(self) -> str:
        """The drafter of the recorded runs."""
        return LOOKUP if self.model == NO_DRAFT else self.model

    @property
    def traces(self) -> list[Trace]:
        return [record.trace for record in self.records]

    def only(self, numbers: Sequence[int]) -> Drafted:
        """The same for the requests with these numbers only."""
        return replace(
            self,
            records=[self.records[number] for number in numbers],
            reading=self.reading and self.reading.only(numbers),
        )


def of_drafter(drafted: Sequence[Drafted], drafter: str) -> Drafted:
    """The one that `drafter` uses; the first for lookups alone."""
    return next((one for one in drafted if one.model == model_of(drafter)), drafted[0])


def normalized(costs: Mapping[str, Costs]) -> dict[str, Costs]:
    """Costs by draft, as if the host had been as fast for each of them as it was for the first."""
    return {name: one.like(next(iter(costs.values()))) for name, one in costs.items()}
