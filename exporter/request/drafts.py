"""`--draft`, as it is given: a checkpoint, or `NAME=` and one. What exists is a path, whatever its characters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ...bundle import RESERVED, check_name
from ...errors import ParameterError

# This value means that nothing is exported: drafts are looked up in the text with every bundle.
LOOKUP = "lookup"
LONGEST = 32


@dataclass(frozen=True)
class NamedDraft:
    """source: a folder or a hub id. Raises `ParameterError` for a name that no draft can have."""

    name: str
    source: str

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except ValueError as error:
            raise ParameterError(f"--draft: {error}", "draft") from None


UNNAMED = "draft"  # whose path gives no name


def parse_draft(given: str, name: str | None = None) -> NamedDraft:
    """name: of an option of its own. Without any, it is the last word of the path. Raises `ParameterError`."""
    before, equals, source = given.partition("=")
    if name is not None or not equals or "/" in before or not before or _exists(given):
        return NamedDraft(_usual_name(given) if name is None else name, given)
    if not source:
        raise ParameterError(f"--draft is {given}; expected NAME=PATH, or just a path", "draft")
    return NamedDraft(before, source)


def parse_drafts(given: Iterable[str]) -> tuple[NamedDraft, ...]:
    """Raises `ParameterError` for two of one name."""
    found: dict[str, NamedDraft] = {}
    for one in given:
        if one == LOOKUP:
            continue
        draft = parse_draft(one)
        if draft.name in found:
            raise ParameterError(
                f"two drafts are called {draft.name!r}, {found[draft.name].source} and {draft.source}; "
                "name one of them with --draft NAME=PATH",
                "draft",
            )
        found[draft.name] = draft
    return tuple(found.values())


def _exists(source: str) -> bool:
    return os.path.lexists(os.path.expanduser(source))  # noqa: PTH111 - of Path, it refuses an unknown user


def _usual_name(source: str) -> str:
    parts = r"[/\\]" if _exists(source) else r"[/:\\]"  # a colon comes after a hub id
    word = re.split(parts, source.rstrip("/\\"))[-1].removesuffix(".gguf")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", word).lstrip("._-")[:LONGEST]
    return name if name and name not in RESERVED else UNNAMED
