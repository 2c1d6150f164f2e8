"""`specexport chat`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from .options import BUNDLE, CHAT_TEMPLATE, running
from .sampling_options import note_route, sampling_options

PROBE = [{"role": "user", "content": "a"}]
KEY = "\\C-t"  # as readline writes Ctrl-T


@click.command()
@BUNDLE
@click.option("--system", metavar="TEXT", help="System message in front of the conversation.")
@CHAT_TEMPLATE
@sampling_options
@running
def chat(
    bundle: Path,
    system: str | None,
    chat_template: Path | None,
    where: dict[str, Any],
    max_new_tokens: int,
    **options: Any,
) -> None:
    """Talk to the model in the terminal.

    Accepted draft tokens are green, the target's own tokens are not; Ctrl-T toggles the colours (Ctrl-Y brings back
    what was typed). /plain toggles speculation, /system TEXT sets the system message, /reset drops the conversation but
    keeps the system message, Ctrl-C stops an answer, Ctrl-D quits. Piped input is one message per line.
    """
    from rich.console import Console

    from .conversation import Conversation
    from .loading import load

    with suppress(ImportError):  # line editing, and one key for the colours
        import readline

        readline.parse_and_bind(f'"{KEY}": "\\C-e\\C-u/colour\\n"')  # the line is cleared first
    parameters = {"max_new_tokens": max_new_tokens, **options}
    # The budget lets a model that keeps states go on from an earlier turn.
    with load(bundle, prompt_cache_bytes=None, chat_template=chat_template, **where) as session:
        note_route(session, options["route"])
        session.stream(PROBE, **parameters).close()  # a wrong option ends the command, not every answer
        Conversation(session, Console(highlight=False, soft_wrap=True), system, parameters).run(_ask)


def _ask() -> str | None:
    """The user's next line; None at the end of the input."""
    if sys.stdin is None:  # it is closed
        return None
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        if sys.stdin.isatty():
            print()  # noqa: T201 - the shell's prompt begins a line
        return None
