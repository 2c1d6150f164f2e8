"""Parses a request's two tensors: a text, and options as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ParameterError, PromptError
from ...runtime.grammar.grammar import Grammar
from ...runtime.sampling.options import shown
from ...runtime.sampling.parameters import SamplingParameters, with_overrides
from ...runtime.session import Session
from ...runtime.stream import Stream
from ...runtime.text.encode import Prompt

GRAMMARS: Mapping[str, Callable[[Any], Grammar]] = {
    "json_schema": Grammar.json_schema,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
}


@dataclass(frozen=True)
class Asked:
    """A parsed request. prompt: a text, or the messages of a chat."""

    prompt: Prompt
    parameters: SamplingParameters

    @classmethod
    def of(cls, text: bytes | None, options: bytes | None) -> Asked:
        """Parse the tensors. text: in UTF-8. options: a JSON object with the fields of `SamplingParameters` by name;
        `grammar` is an object with one kind, such as `{"regex": "a+"}`; `messages`, a chat, replaces the text.

        Raises `ParameterError`, or `GrammarError` or `PromptError`, which are kinds of it, for a request that is wrong.
        """
        given = _object(options)
        messages = given.pop("messages", None)
        if (text is None) == (messages is None):
            found = "both text_input and messages" if messages is not None else "neither text_input nor messages"
            raise PromptError(f"the request has {found}; give one of them", "messages")
        if messages is not None and not _are_messages(messages):
            raise PromptError(
                f"messages are {shown(messages)}; give a list of objects with role and content", "messages"
            )
        if given.get("grammar") is not None:
            given["grammar"] = _grammar(given["grammar"])
        if isinstance(given.get("logit_bias"), dict):
            given["logit_bias"] = {_token(name): bias for name, bias in given["logit_bias"].items()}
        try:
            parameters = with_overrides(None, given)
        except TypeError as error:  # an unknown name
            raise ParameterError(f"options: {error}", "options") from None
        return cls(messages if text is None else _decoded("text_input", text), parameters)

    def stream(self, session: Session) -> Stream:
        """Start the request on `session`. Raises what `Session.stream` raises."""
        grammar = self.parameters.grammar
        if grammar is None or isinstance(self.prompt, str):
            return session.stream(self.prompt, self.parameters)
        ids = session.encode(self.prompt)  # if a chat's model thinks, the grammar begins after its thoughts
        return session.stream(ids, self.parameters, grammar=grammar.behind(session.thinking(ids)))


def _object(options: bytes | None) -> dict[str, Any]:
    if options is None or not options.strip():
        return {}
    try:
        given = json.loads(_decoded("options", options))
    except RecursionError:
        raise ParameterError("options are nested too deeply; give one JSON object", "options") from None
    except ValueError as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"options are not JSON: {error}; give one JSON object", "options") from None
    if not isinstance(given, dict):
        raise ParameterError(f"options are {shown(given)}; give one JSON object", "options")
    return given


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ParameterError(f"{name} is not UTF-8: {error.reason} at byte {error.start}", name) from None


def _are_messages(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(one, dict) for one in given)


def _grammar(given: Any) -> Grammar:
    if not isinstance(given, dict) or len(given) != 1 or next(iter(given)) not in GRAMMARS:
        raise ParameterError(
            f"grammar is {shown(given)}; it must be an object with one of {', '.join(GRAMMARS)}", "grammar"
        )
    [(kind, value)] = given.items()
    return GRAMMARS[kind](value)


def _token(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ParameterError(
            f"a token of logit_bias is {shown(name)}; it must be a whole number", "logit_bias"
        ) from None
