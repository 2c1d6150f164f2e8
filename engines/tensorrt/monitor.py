"""TensorRT's progress while it compiles, as the steps of a progress display, and how a build is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

STEPS_PER_GRAPH = 10  # of a progress display


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class Monitor:
    """Called by TensorRT from any thread: nested phases start and complete steps.

    step: called at the start of each of `STEPS_PER_GRAPH` parts, with the name of the phase that runs then.
    """

    def __init__(self, step: Callable[[str], None]) -> None:
        self._step = step
        self._phases: dict[str, _Phase] = {}
        self._announced = 0
        self._cancelled = False
        self._lock = Lock()

    def cancel(self) -> None:
        self._cancelled = True

    def phase_start(self, name: str, parent: str | None, steps: int) -> None:
        self._phases[name] = _Phase(parent, max(1, steps))
        self._announce(name)

    def step_complete(self, name: str, step: int) -> bool:
        if name in self._phases:
            self._phases[name].done = step + 1
            self._announce(name)
        return not self._cancelled

    def finish(self) -> None:
        """Announce the remaining parts: a library may report fewer steps than it promised."""
        while self._announced < STEPS_PER_GRAPH:
            self._next("done")

    def _announce(self, name: str) -> None:
        with self._lock:
            # The first part begins with the build, the last ends with it.
            while self._announced < STEPS_PER_GRAPH and self._announced <= self._fraction(name) * STEPS_PER_GRAPH:
                self._next(name.lower())

    def _next(self, name: str) -> None:
        self._announced += 1
        self._step(name)

    def _fraction(self, name: str | None) -> float:
        """How much of the build is done, 0 to 1: the finished steps of each phase, plus its inner phase's fraction."""
        part = 0.0
        while name in self._phases:
            phase = self._phases[name]
            part = min(1.0, (phase.done + part) / phase.steps)
            name = phase.parent
        return part


def progress_monitor(trt: Any, monitor: Monitor) -> Any:
    class ProgressMonitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            monitor.phase_start(name, parent, steps)

        def step_complete(self, name: str, step: int) -> bool:
            return monitor.step_complete(name, step)

        def phase_finish(self, name: str) -> None:
            pass

    return ProgressMonitor()
