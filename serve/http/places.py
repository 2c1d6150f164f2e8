"""Which connection ends so that a new one gets a place. So a probe never waits for one, whoever holds the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Held(Protocol):
    """kept: it must stay. stage: how far its request is; lower ones end first. since: when it came to wait."""

    @property
    def kept(self) -> bool: ...
    @property
    def peer(self) -> str: ...
    @property
    def stage(self) -> int: ...
    @property
    def since(self) -> float: ...


H = TypeVar("H", bound=Held)


def least_needed(connections: Iterable[H]) -> H | None:
    """One of the address that has the most, so that nobody takes the places of others; of these the oldest that waits
    for a request. None if all must stay.
    """
    found = [one for one in connections if not one.kept]
    each = Counter(one.peer for one in found)
    return min(found, key=lambda one: (-each[one.peer], one.stage, one.since), default=None)
