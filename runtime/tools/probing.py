"""Probing a chat template: it is asked to write something, to find out how it does that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import PromptError

QUESTION = {"role": "user", "content": "0"}  # templates want one first


def tried(write: Callable[..., str], *given: Any) -> str | None:
    """What `write` returns, None for what the template refuses."""
    try:
        return write(*given)
    except PromptError:
        return None
