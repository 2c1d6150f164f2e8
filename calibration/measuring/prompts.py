"""Requests of a measured run: prompts as tokens, with the number of new tokens that fits; and how far a run is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...errors import BundleError, ParameterError, PromptError
from ...runtime.session import Session
from ...runtime.text.prompt_file import REMEDY, PromptLine, first_of

# (steps finished, total steps)
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """The `Progress` that shows nothing."""


@dataclass(frozen=True)
class Request:
    """A prompt as the session takes it. max_new_tokens: limited by the capacity, at least 1."""

    line: int
    route: str
    tokens: tuple[int, ...]
    max_new_tokens: int


def fit(
    session: Session, lines: Iterable[PromptLine], max_new_tokens: int, skip_invalid: bool
) -> tuple[list[Request], list[str]]:
    """The requests of `lines` as tokens and, with `skip_invalid`, why others were left out.

    max_new_tokens: for lines that do not set it; limited to what the capacity leaves. Raises `ParameterError`, with the
    line's number, for a prompt that the session refuses, e.g. one that fills the capacity, and if no line is left.
    """
    requests: list[Request] = []
    skipped: list[str] = []
    for line in lines:
        try:
            tokens = session.encode(line.prompt)
        except (PromptError, BundleError) as error:  # BundleError: messages, but the tokenizer has no chat template
            message = f"{line.where}: {error}"
            if not skip_invalid:
                raise ParameterError(message + REMEDY, error.field) from None
            skipped.append(message)
            continue
        room = session.capacity - len(tokens)
        wanted = max_new_tokens if line.max_new_tokens is None else line.max_new_tokens
        requests.append(Request(line.line, line.route, tuple(tokens), min(wanted, room)))
    if not requests:
        raise ParameterError(
            f"no prompt can be used; {first_of(skipped)}" if skipped else "there are no prompts; give at least one",
            "prompts",
        )
    return requests, skipped


def choose(requests: Sequence[Request], routes: Sequence[str], limit: int | None) -> list[Request]:
    """The first `limit` requests of each of `routes`; of all routes if `routes` is empty.

    Raises `ParameterError` for a route without requests.
    """
    known = list(dict.fromkeys(request.route for request in requests))
    for route in routes:
        if route not in known:
            raise ParameterError(f"no prompt has the route {route!r}; the routes are {', '.join(known)}", "route")
    taken: Counter[str] = Counter()
    chosen = []
    for request in requests:
        if (not routes or request.route in routes) and (limit is None or taken[request.route] < limit):
            taken[request.route] += 1
            chosen.append(request)
    return chosen
