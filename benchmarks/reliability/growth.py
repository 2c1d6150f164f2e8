"""Does a server keep memory of finished requests? Judged per request, not per hour.

A request creates at least its answer. A server that kept answers would grow by their mean size with each request; one
that keeps nothing grows by what the allocator does not return, which is limited. So the growth after the first half of
a run, divided by the requests since then, must be below the mean size of an answer. Memory changes in steps of a few
MiB, so a run is meaningful only if the answers of its second half are several times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST = 8 << 20  # bytes of answers after the first half
PART = 10  # one part in this many of the run, in the middle and at the end, gives a median


@dataclass(frozen=True)
class Growth:
    """size: growth of memory after the first half, in bytes. requests: between the two medians. answer: mean bytes."""

    size: float
    requests: int
    answer: float

    @property
    def each(self) -> float:
        """Bytes per request."""
        return self.size / max(self.requests, 1)

    @property
    def judged(self) -> bool:
        return self.requests * self.answer >= LEAST

    @property
    def kept(self) -> bool:
        """Whether the server may have kept answers."""
        return self.judged and self.each >= self.answer

    @property
    def told(self) -> str:
        found = f"{self.each:+.0f} bytes a request over the last {self.requests}, whose answers have {self.answer:.0f}"
        return found if self.judged else f"{found}: too few to judge"


def growth(rss: Sequence[float], requests: Sequence[int], answered: int) -> Growth:
    """The growth of a run. rss: samples in bytes. requests: how many were finished at each sample. answered: bytes of
    all answers.
    """
    size, half = max(len(rss) // PART, 1), len(rss) // 2
    grown = median(rss[-size:]) - median(rss[half : half + size])
    between = requests[-1 - size // 2] - requests[half + size // 2]
    return Growth(grown, between, answered / max(requests[-1], 1))
