"""`specexport chat`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from .options import BUNDLE, running
from .sampling_options import sampling_options

KEY = "\\C-t"  # as readline writes Ctrl-T


@click.command()
@BUNDLE
@click.option("--system", metavar="TEXT", help="System message in front of the conversation.")
@sampling_options
@running
def chat(bundle: Path, system: str | None, where: dict[str, Any], max_new_tokens: int, **options: Any) -> None:
    """Talk to the model in the terminal.

    Accepted draft tokens are green, the target's own tokens are not; Ctrl-T turns the colours off and on. /plain turns
    speculation off and on, /system TEXT sets the system message, /reset starts again, Ctrl-C stops an answer, Ctrl-D
    leaves.
    """
    from rich.console import Console

    from ..runtime.session import load
    from .conversation import Conversation

    with suppress(ImportError):  # line editing, and one key for the colours
        import readline

        readline.parse_and_bind(f'"{KEY}": "/colour\\n"')
    parameters = {"max_new_tokens": max_new_tokens, **options}
    with load(bundle, **where) as session:
        Conversation(session, Console(highlight=False, soft_wrap=True), system, parameters).run(_ask)


def _ask() -> str | None:
    """The user's next line; None at the end of the input."""
    try:
        return input("> ")
    except EOFError:
        return None
