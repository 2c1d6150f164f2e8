"""Two checkpoints, and a progress that can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """Two tiny checkpoints with one tokenizer; the draft is the smaller one."""

    target: Path
    draft: Path


class Notes:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[str] = []
        self.stages: list[tuple[str, int]] = []  # label and number of steps

    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        self.stages.append((label, steps))
        yield lambda step: self.steps.append(f"{label}: {step}")

    def note(self, message: str) -> None:
        self.notes.append(message)
