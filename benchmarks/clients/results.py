"""What the checks of all clients came to, and the table of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "refused", "fails"]


@dataclass(frozen=True)
class Result:
    """check: its name. outcome: `refused` if the server answered with a status of 4xx. reason: empty if ok."""

    check: str
    outcome: Outcome
    reason: str


def read(output: str, code: int | None, errors: str) -> list[Result]:
    """The results that a script printed, line by line, among what its client prints.

    code: its exit code, or None if it ran too long. errors: its stderr. A script that did not end well has not done all
    its checks, so that is a failure of its own.
    """
    found = []
    for line in output.splitlines():
        if line.startswith('{"check": '):
            said = json.loads(line)
            found.append(Result(said["check"].replace("_", " "), said["outcome"], said["reason"]))
    if code != 0 or not found:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        ended = "ran too long" if code is None else f"ended with exit code {code}"
        found.append(Result("script", "fails", f"{ended}: {last}"))
    return found


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def table(results: dict[str, list[Result]]) -> str:
    """Markdown: a row for each client."""
    rows = ["| client | works | does not |", "|---|---|---|"]
    for client, found in results.items():
        works = ", ".join(result.check for result in found if result.outcome == "ok") or "-"
        rest = [f"{one.check} ({one.outcome}: {cell(one.reason)})" for one in found if one.outcome != "ok"]
        rows.append(f"| {client} | {works} | {'; '.join(rest) or '-'} |")
    return "\n".join(rows)
