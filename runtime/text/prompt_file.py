"""Prompts in a JSONL file: what `bench`, `calibrate`, `verify` and `build --calibration-prompts` read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import ParameterError
from .encode import Prompt
from .messages import check_messages

# by whether routes matter
EXPECTED = {True: '{"route": "...", "prompt": "..."}', False: '{"prompt": "..."} or {"messages": [...]}'}
KEYS = ("route", "prompt", "messages", "max_new_tokens")
REMEDY = "; --skip-invalid leaves such lines out"
# As much of a wrong value as fits on a line of a terminal.
SHOWN = 60


@dataclass(frozen=True)
class PromptLine:
    """line: its number in the file, from 1. prompt: a text, chat messages or token ids. file: for messages.

    max_new_tokens: None for the run's own.
    """

    line: int
    route: str
    prompt: Prompt
    max_new_tokens: int | None
    file: str = field(default="prompts", compare=False)

    @property
    def where(self) -> str:
        return f"{self.file}, line {self.line}"


def read_prompt_lines(
    path: Path, skip_invalid: bool = False, routed: bool = True
) -> tuple[list[PromptLine], list[str]]:
    """The lines of a JSONL file and, with `skip_invalid`, the errors of those that were left out.

    A line is {"route": ..., "prompt": text or token ids}, or {"route": ..., "messages": [...]}, and may have
    max_new_tokens. Without `routed` the route may be missing. Empty lines and a byte order mark are skipped. Raises
    `ParameterError` naming file and line number, what was found and what was expected, and for a file that cannot be
    read or has no usable line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ParameterError(
            f"{path} cannot be read: {error.strerror}; give a JSONL file of lines {EXPECTED[routed]}", "prompts"
        ) from None
    lines: list[PromptLine] = []
    skipped: list[str] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            lines.append(replace(_parse(number, line, routed), file=str(path)))
        except ParameterError as error:
            message = f"{path}, line {number}: {error}"
            if not skip_invalid:
                raise ParameterError(message + REMEDY * routed, error.field) from None
            skipped.append(message)
    if not lines:
        of = f"; {first_of(skipped)}" if skipped else ""
        raise ParameterError(f"{path} has no usable line, expected lines {EXPECTED[routed]}{of}", "prompts")
    return lines, skipped


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, in order, for uses where routes do not matter."""
    return [line.prompt for line in read_prompt_lines(path, routed=False)[0]]


def first_of(skipped: Sequence[str]) -> str:
    """The error in the first line that was left out, and how many more there are."""
    rest = len(skipped) - 1
    return skipped[0] + (f" (and {rest} more)" if rest else "")


def _parse(number: int, raw: bytes, routed: bool) -> PromptLine:
    """Raises `ParameterError` with what was found and what was expected."""
    try:
        entry = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except ParameterError:
        raise
    except UnicodeDecodeError:
        raise _expected(f"{str(raw[:SHOWN])[1:]}, which is not UTF-8", EXPECTED[routed]) from None
    except (ValueError, RecursionError):  # also raised for numbers and nesting without end
        raise _expected(f"{_show(raw.decode().strip())}, which is not JSON", EXPECTED[routed]) from None
    if not isinstance(entry, dict):
        raise _expected(_show(entry), EXPECTED[routed])
    for key in entry:
        if key not in KEYS:
            raise _expected(f"the unknown key {_show(key)}", ", ".join(map(_show, KEYS)), key)
    route = _route(entry) if routed or "route" in entry else ""
    most = entry.get("max_new_tokens")
    if "max_new_tokens" in entry and (type(most) is not int or most < 1):
        raise _expected(f'"max_new_tokens": {_show(most)}', "a whole number of at least 1", "max_new_tokens")
    return PromptLine(number, route, _prompt(entry), most)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        double = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise _expected(f"the key {_show(double)} twice", "every key once", double)
    return fields


def _route(entry: dict[str, Any]) -> str:
    if "route" not in entry:
        named = 'the name of the kind of request that this is, such as "route": "code" (the same in every line will do)'
        raise _expected('no "route"', named, "route")
    route = entry["route"]
    if not isinstance(route, str) or not route or route != route.strip() or not route.isprintable():
        expected = "a name of printable characters, without spaces around it"
        raise _expected(f"the route {_show(route)}", expected, "route")
    return route


def _prompt(entry: dict[str, Any]) -> Prompt:
    if ("prompt" in entry) == ("messages" in entry):
        both = 'both "prompt" and "messages"' if "prompt" in entry else 'no "prompt"'
        raise _expected(both, 'either "prompt", a text or token ids, or "messages"', "prompt")
    if "messages" in entry:
        messages = entry["messages"]
        if not isinstance(messages, list):
            raise _expected(f"the messages {_show(messages)}", '[{"role": "user", "content": "..."}]', "messages")
        return check_messages(messages)
    prompt = entry["prompt"]
    ids = isinstance(prompt, list) and all(type(item) is int for item in prompt)
    if not (isinstance(prompt, str) or ids) or not prompt:
        raise _expected(f"the prompt {_show(prompt)}", "a text or a list of token ids, not empty", "prompt")
    assert isinstance(prompt, str | list)
    return prompt


def _expected(what: str, expected: str, field: str | None = None) -> ParameterError:
    return ParameterError(f"found {what}, expected {expected}", field)


def _show(value: object) -> str:
    """`value` in a form that is safe for a terminal, shortened and without control characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
