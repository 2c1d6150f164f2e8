"""Options that bound the output by a grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TextIO

import click

from ..errors import GrammarError
from .streams import text_of

GRAMMARS = (
    click.option("--json-schema", type=click.File(encoding="utf-8"), help="File with a JSON schema for the output."),
    click.option("--regex", help="Regular expression that the whole output must match."),
    click.option("--choice", multiple=True, help="Allowed output; repeatable."),
    click.option(
        "--grammar", "lark", type=click.File(encoding="utf-8"), help="File with a Lark grammar for the output."
    ),
)


def grammars(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; the command gets them as one `grammar`, None without any."""

    @wraps(command)
    def run(
        *, json_schema: TextIO | None, regex: str | None, choice: tuple[str, ...], lark: TextIO | None, **others: Any
    ) -> None:
        given = {"--json-schema": json_schema, "--regex": regex, "--choice": choice or None, "--grammar": lark}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise click.UsageError(f"{names[0]} and {names[1]} cannot be combined; give one of them")
        from ..runtime.grammar.grammar import Grammar

        grammar, file = None, json_schema or lark
        try:
            if json_schema is not None:
                grammar = Grammar.json_schema(text_of(json_schema))
            elif regex is not None:
                grammar = Grammar.regex(regex)
            elif choice:
                grammar = Grammar.choice(choice)
            elif lark is not None:
                grammar = Grammar.lark(text_of(lark))
            command(grammar=grammar, **others)
        except GrammarError as error:  # some are found only when the command compiles it
            if file is None:
                raise
            raise GrammarError(f"{file.name}: {error}", code=error.code) from None

    for option in reversed(GRAMMARS):
        run = option(run)
    return run
