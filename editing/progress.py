"""The progress a build reports: named stages, each with a number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from ..bundle import Bundle


class BuildProgress(Protocol):
    def stage(self, label: str, steps: int) -> AbstractContextManager[Callable[[str], None]]:
        """Enter a stage; the function it gives announces the next of its steps."""
        ...

    def note(self, message: str) -> None:
        """Print a line that stays."""
        ...


class Silent:
    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        yield lambda step: None

    def note(self, message: str) -> None:
        pass


@dataclass(frozen=True)
class StageTime:
    label: str
    seconds: float
    reused: bool


@dataclass(frozen=True)
class BuildReport:
    bundle: Bundle
    times: tuple[StageTime, ...]
    warnings: tuple[str, ...]


class Timed:
    """Measures the stages of another progress: `times` in the order they ended."""

    def __init__(self, inner: BuildProgress) -> None:
        self.inner = inner
        self.times: list[StageTime] = []

    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        start = perf_counter()
        with self.inner.stage(label, steps) as step:
            yield step
        self.times.append(StageTime(label, perf_counter() - start, False))

    def reused(self, label: str) -> None:
        self.times.append(StageTime(label, 0.0, True))
        self.inner.note(f"{label}: reused from an earlier build")

    def note(self, message: str) -> None:
        self.inner.note(message)
