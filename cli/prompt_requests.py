"""Requests from a file of prompts, for commands that measure with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..calibration.measuring.prompts import Request
    from ..runtime.session import Session
    from ..runtime.text.prompt_file import PromptLine


def requests_of(
    session: Session, read: tuple[Sequence[PromptLine], Sequence[str]], max_new_tokens: int, skip_invalid: bool
) -> list[Request]:
    """The requests of a file that `session` can run. What was left out is reported on stderr.

    read: by `read_prompt_lines`, so that a file that cannot be used is refused before a bundle is loaded. Raises as
    `fit` does.
    """
    from ..calibration.measuring.prompts import fit

    lines, broken = read
    requests, refused = fit(session, lines, max_new_tokens, skip_invalid)
    for message in (*broken, *refused):
        click.echo(f"left out: {message}", err=True)
    return requests
