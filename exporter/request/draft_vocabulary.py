"""`--draft-vocabulary`, as it is given."""

from __future__ import annotations

from ...errors import ParameterError
from .precision_choice import AUTO


def parse_vocabulary(given: str) -> int | None:
    """The number of tokens, or None for `auto`. Raises `ParameterError`."""
    if given == AUTO:
        return None
    if not given.isascii() or not given.isdigit() or not int(given):
        raise ParameterError(
            f"--draft-vocabulary is {given}; it must be a number of tokens, at least 1, or {AUTO}", "draft_vocabulary"
        )
    return int(given)
