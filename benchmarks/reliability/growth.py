"""Does a server keep what belongs to requests that are over? Judged by requests, not by hours.

What a request makes is its answer at least. A server that kept answers would grow by their mean size with each request;
one that keeps nothing grows by what the allocator does not give back, which ends. So growth behind the first half of a
run, over the requests of that half, must be below the mean size of an answer. Memory moves in steps of a few MiB, so a
run says something once answers of its second half are several times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST = 8 << 20  # bytes of answers behind the first half
PART = 10  # of the run, at the half and at the end, whose median is taken


@dataclass(frozen=True)
class Growth:
    """size: bytes that memory grew by, behind the first half. requests: between the two medians. answer: mean bytes."""

    size: float
    requests: int
    answer: float

    @property
    def each(self) -> float:
        """Bytes a request."""
        return self.size / max(self.requests, 1)

    @property
    def judged(self) -> bool:
        return self.requests * self.answer >= LEAST

    @property
    def kept(self) -> bool:
        """Whether answers may have been kept."""
        return self.judged and self.each >= self.answer

    @property
    def told(self) -> str:
        found = f"{self.each:+.0f} bytes a request over the last {self.requests}, whose answers have {self.answer:.0f}"
        return found if self.judged else f"{found}: too few to judge"


def growth(rss: Sequence[float], requests: Sequence[int], answered: int) -> Growth:
    """rss: bytes, at times when so many `requests` were over. answered: bytes of all answers."""
    size, half = max(len(rss) // PART, 1), len(rss) // 2
    grown = median(rss[-size:]) - median(rss[half : half + size])
    between = requests[-1 - size // 2] - requests[half + size // 2]
    return Growth(grown, between, answered / max(requests[-1], 1))
