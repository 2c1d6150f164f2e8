"""Asking a chat template how it writes something, by having it write that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import PromptError

QUESTION = {"role": "user", "content": "0"}  # templates want one first


def tried(write: Callable[..., str], *given: Any) -> str | None:
    """What `write` gives, None for what the template refuses."""
    try:
        return write(*given)
    except PromptError:
        return None
