"""Interleaved requests: every system answers the first request, then every system the second, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol


class Asked(Protocol):
    name: str

    def ask(self, request: dict[str, Any]) -> dict[str, Any]: ...


WARM_UP = 24  # tokens


@dataclass(frozen=True)
class Request:
    """route: the kind of task. tokens: of the prompt.

    ends: tokens that end an answer. If there are any, all systems decode as many tokens as the first system's plain
    answer has: text after the end of an answer repeats itself, and would favour systems with prompt lookup.
    """

    route: str
    tokens: list[int]
    new_tokens: int
    ends: frozenset[int] = frozenset()


class Kept(Protocol):
    """What earlier runs of the same command have finished: specexport's `Journal`."""

    finished: dict[str, dict[str, Any]]

    def add(self, key: str, row: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class System:
    """One way to answer: a runner, plain or speculative."""

    name: str
    runner: Asked
    speculative: bool


@dataclass(frozen=True)
class Measured:
    """One system's answer to one request. rounds: None if the runner does not know."""

    tokens: tuple[int, ...]
    tokens_first: int
    seconds_first: float
    seconds_decode: float
    cpu_decode: float
    rounds: int | None

    @property
    def ms_per_token(self) -> float:
        """Milliseconds per token after the first tokens, whose time is that of the prefill."""
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
    """All systems once, in an order that starts with the next system for each request."""
    start = request % len(systems)
    yield from systems[start:] + systems[:start]


def ask(system: System, request: Request, new_tokens: int, k: int) -> Measured:
    said = system.runner.ask(
        {"prompt_tokens": request.tokens, "new_tokens": new_tokens, "speculative": system.speculative, "k": k}
    )
    names = ("tokens_first", "seconds_first", "seconds_decode", "cpu_decode", "rounds")
    return Measured(tuple(said["tokens"]), *(said[name] for name in names))


def answer_length(system: System, request: Request, k: int) -> int:
    """How many tokens to decode for `request`: up to its end, and two full rounds, since the first one is not timed."""
    if not request.ends:
        return request.new_tokens
    tokens = ask(system, request, request.new_tokens, k).tokens[: request.new_tokens]
    length = next((place for place, token in enumerate(tokens, start=1) if token in request.ends), len(tokens))
    return min(request.new_tokens, max(length, 2 * (k + 1)))


def run(
    systems: list[System],
    requests: list[Request],
    k: int,
    note: Callable[[str], None] = lambda _: None,
    kept: Kept | None = None,
) -> dict[tuple[str, bool], list[Measured]]:
    """Answers by (name, speculative), one per request. The first request runs once in advance, as a warm-up, with its
    tokens reversed: some systems keep the caches of prompts.

    The first system is a plain one. kept: requests that are finished in it are not run again.
    """
    found: dict[tuple[str, bool], list[Measured]] = {(system.name, system.speculative): [] for system in systems}
    warm = False
    for index, request in enumerate(requests):
        key = f"request {index}"
        if kept and key in kept.finished:
            answers = {
                place: Measured(**row | {"tokens": tuple(row["tokens"])}) for place, row in kept.finished[key].items()
            }
        else:
            if not warm:
                warm_up = replace(request, tokens=request.tokens[::-1])
                for system in systems:
                    ask(system, warm_up, min(request.new_tokens, WARM_UP), k)
            warm, length = True, answer_length(systems[0], request, k)
            answers = {_place(system): ask(system, request, length, k) for system in order(systems, index)}
            if kept:
                kept.add(key, {place: asdict(measured) for place, measured in answers.items()})
        for system in systems:
            found[system.name, system.speculative].append(answers[_place(system)])
        note(f"request {index + 1} of {len(requests)}")
    return found


def _place(system: System) -> str:
    return f"{system.name} {'speculative' if system.speculative else 'plain'}"
