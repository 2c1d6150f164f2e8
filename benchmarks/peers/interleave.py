"""Requests in turn: every system answers the first, then every system the second, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class Asked(Protocol):
    name: str

    def ask(self, request: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class System:
    """One way to answer: a runner, plain or speculative."""

    name: str
    runner: Asked
    speculative: bool


@dataclass(frozen=True)
class Measured:
    """What one system answered to one request. rounds: None where the runner does not know."""

    tokens: tuple[int, ...]
    tokens_first: int
    seconds_first: float
    seconds_decode: float
    cpu_decode: float
    rounds: int | None

    @property
    def ms_per_token(self) -> float:
        """Behind the first tokens, whose time is the prefill's."""
        return self.seconds_decode * 1e3 / (len(self.tokens) - self.tokens_first)

    @property
    def cpu_ms_per_token(self) -> float:
        return self.cpu_decode * 1e3 / (len(self.tokens) - self.tokens_first)

    @property
    def ms_per_round(self) -> float | None:
        return self.seconds_decode * 1e3 / self.rounds if self.rounds else None

    @property
    def tokens_per_round(self) -> float | None:
        return (len(self.tokens) - self.tokens_first) / self.rounds if self.rounds else None


def order(systems: list[System], request: int) -> Iterator[System]:
    """All systems once, each request beginning with the next one, so that nobody always follows the same system."""
    start = request % len(systems)
    yield from systems[start:] + systems[:start]


def run(
    systems: list[System],
    prompts: list[list[int]],
    new_tokens: int,
    k: int,
    note: Callable[[str], None] = lambda _: None,
) -> dict[tuple[str, bool], list[Measured]]:
    """Answers by (name, speculative), one a prompt; the first prompt is asked once more before, to warm up."""
    found: dict[tuple[str, bool], list[Measured]] = {(system.name, system.speculative): [] for system in systems}

    def ask(system: System, prompt: list[int]) -> Measured:
        said = system.runner.ask(
            {"prompt_tokens": prompt, "new_tokens": new_tokens, "speculative": system.speculative, "k": k}
        )
        names = ("tokens_first", "seconds_first", "seconds_decode", "cpu_decode", "rounds")
        return Measured(tuple(said["tokens"]), *(said[name] for name in names))

    for system in systems:
        ask(system, prompts[0])
    for index, prompt in enumerate(prompts):
        for system in order(systems, index):
            found[system.name, system.speculative].append(ask(system, prompt))
        note(f"request {index + 1} of {len(prompts)}")
    return found
