"""What a request's output must match: a value, checked when it is made and compiled when a request uses it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ...errors import GrammarError
from .limits import LONGEST_LARK, check_length, check_schema, too_deep
from .thinking import Thinking

Kind = Literal["schema", "regex", "choice", "grammar", "tools"]


@dataclass(frozen=True)
class Grammar:
    """The form that an output must have; made by `Grammar.json_schema`, `regex`, `choice` or `lark`.

    text: the schema as JSON without blanks, the regex, the choices as JSON, or the Lark grammar. whitespace: for JSON,
    whether whitespace of up to eight characters is allowed between tokens. lenient: whether keywords of a schema that
    cannot be enforced are left out instead of refused. shown: special tokens that the grammar names; they appear in the
    output's text by name. thinking: what may come before the grammar, see `after`. answer, mark: see `otherwise`; made
    by `runtime/tools/bounds.py`.

    docs/grammars.md says what is constrained and what is refused. Raises `GrammarError` when it is made if it is too
    long or nested too deep; a request raises it for what cannot be compiled.
    """

    kind: Kind
    text: str
    whitespace: bool = False
    shown: tuple[int, ...] = ()
    thinking: Thinking | None = None
    lenient: bool = False
    answer: Grammar | None = None
    mark: str = ""

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, whitespace: bool = False) -> Grammar:
        """JSON of a schema (draft 2020-12): a mapping, or its text. Properties come in the schema's order."""
        if isinstance(schema, str):
            check_length("schema", schema, 1 << 20)  # with its blanks
            try:
                schema = json.loads(schema)
            except RecursionError:
                raise too_deep() from None
            except ValueError as error:
                raise GrammarError(f"it is not JSON: {error}", kind="schema") from None
        if not isinstance(schema, Mapping | bool):
            raise GrammarError(f"it is of type {type(schema).__name__}; it must be an object", kind="schema")
        try:
            text = json.dumps(
                dict(schema) if isinstance(schema, Mapping) else schema, allow_nan=False, separators=(",", ":")
            )
        except RecursionError:
            raise too_deep() from None
        except (TypeError, ValueError) as error:
            reason = str(error).partition(": ")[0]  # Python 3.13 adds the value
            raise GrammarError(f"it cannot be written as JSON: {reason}", kind="schema") from None
        check_length("schema", text)
        if text == "false":
            raise GrammarError("it is false, which nothing matches", kind="schema")
        if text == "true":
            text = "{}"
        check_schema(json.loads(text))  # the form that is compiled; other types of mappings and lists are converted
        return cls("schema", text, bool(whitespace))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """The whole text matches `pattern`, in the syntax of Rust's regex: no look-around, no back-references."""
        return cls("regex", _text("regex", pattern))

    @classmethod
    def choice(cls, choices: Iterable[str]) -> Grammar:
        """The text is one of `choices`."""
        if isinstance(choices, str) or not isinstance(choices, Iterable):
            raise GrammarError("give a list of texts", kind="choice")
        texts = [_text("choice", choice) for choice in choices]
        if not texts or not all(texts):
            raise GrammarError("give at least one text, each of at least one character", kind="choice")
        text = json.dumps(texts)
        check_length("choice", text)
        return cls("choice", text)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A context-free grammar in llguidance's dialect of Lark; its rule `start` is the whole text."""
        return cls("grammar", _text("grammar", text, LONGEST_LARK))

    def after(self, thinking: Thinking | None) -> Grammar:
        """The same grammar, after the thoughts: `thinking` is from `Session.thinking`, which is None if the model has
        none.
        """
        if thinking is None:
            return self
        return replace(self, thinking=thinking, shown=tuple(sorted({*self.shown, *thinking.shown})))

    def otherwise(self, answer: Grammar, mark: str) -> Grammar:
        """A text of this grammar, or one of `answer`, which is refused if its texts may begin with `mark`: by that a
        reader tells them apart.
        """
        return Grammar(
            self.kind,
            self.text,
            self.whitespace,
            tuple(sorted({*self.shown, *answer.shown})),
            self.thinking,
            self.lenient,
            Grammar(*value(answer)),
            mark,
        )


def value(grammar: Grammar) -> tuple[Any, ...]:
    """Its fields, without what a subclass adds."""
    return tuple(getattr(grammar, one.name) for one in fields(Grammar))


def _text(name: str, text: object, longest: int | None = None) -> str:
    if not isinstance(text, str):
        raise GrammarError(f"it is of type {type(text).__name__}; it must be a text", kind=name)
    check_length(name, text, *([] if longest is None else [longest]))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError("it is not valid Unicode", kind=name) from None
    return text
