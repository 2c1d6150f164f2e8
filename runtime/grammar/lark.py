"""Pieces of grammars in llguidance's dialect of Lark: texts with tokens in them, and text up to an end.

Atoms are tokens that a grammar knows by their ids alone, whatever their names spell: special tokens and similar ones.
llguidance treats every added token with a name like `<think>` as a special token, which cannot be part of a text. But
if a grammar forces such a text, llguidance writes it with that token: the only allowed token then cannot be taken. So
in the tokenizer that it reads, these tokens have other names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

ANY = r"(.|\n)*"
TEXT = f"TEXT: /{ANY}/"


def literal(text: str, atoms: Mapping[str, int]) -> str:
    """The tokens by their ids, the rest in quotes; nothing for an empty text."""
    names = "|".join(map(re.escape, sorted(atoms, key=len, reverse=True))) or "(?!)"
    parts = re.split(f"({names})", text)
    return " ".join(f"<[{atoms[part]}]>" if part in atoms else json.dumps(part) for part in parts if part)


def as_regex(text: str) -> str:
    """A regex that matches only `text`: every character except letters and digits by its code point."""
    return re.sub(r"[^a-zA-Z0-9]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def tokens(numbers: Sequence[int]) -> str:
    """One of these tokens, `<[3-5,9]>`. Some tokenizers have thousands of them with consecutive ids."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "<[" + ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges) + "]>"


def until(name: str, end: str, then: str, atoms: Mapping[str, int], free: Sequence[int], may_stop: bool) -> list[str]:
    """The rule `name`: any text up to its first `end`, and then `then`. `TEXT` must be defined as well.

    An end is recognized by its bytes, wherever tokens end, and by the tokens that it names, as both give the same text.
    free: tokens that text may have in addition to its bytes. may_stop: whether the text may lack an end.
    """
    ways, lines = [f"{name}_end {then}"], [f"{name}_end[lazy]: TEXT {json.dumps(end)}"]
    first = min((place for place in map(end.find, atoms) if place >= 0), default=-1)
    if first == 0:
        ways.insert(0, f"TEXT {literal(end, atoms)} {then}")
    elif first > 0:  # text takes everything up to a token, and so what comes before that
        ways.insert(0, f"{name.upper()}_HEAD {literal(end[first:], atoms)} {then}")
        lines.append(f"{name.upper()}_HEAD: /{ANY}{as_regex(end[:first])}/")
    if may_stop:
        ways.append("TEXT")
    before = f"(TEXT {tokens(free)})* " if free else ""
    return [f"{name}: {before}({' | '.join(ways)})", *lines]


def named(text: str, atoms: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The atoms that `text` has."""
    return tuple((name, number) for name, number in atoms.items() if name in text)


def apart(atoms: Mapping[str, int], text: str, end: str) -> Iterable[tuple[str, int]]:
    """The atoms that `text` lacks, and that are no part of an `end`."""
    return ((name, number) for name, number in atoms.items() if name not in text and not _overlap(name, end))


def _overlap(name: str, end: str) -> bool:
    """Whether a text with this token in it may have an end of which the token holds a part."""
    return end in name or any(name.endswith(end[:size]) or name.startswith(end[-size:]) for size in range(1, len(end)))


def is_atom(name: str, special: bool) -> bool:
    """name, special: of one of tokenizer.json's `added_tokens`."""
    return special or (name.startswith("<") and name.endswith(">"))


def without_atoms(text: str) -> str:
    """tokenizer.json with names for its atoms that no text spells."""
    added = json.loads(text).get("added_tokens") or ()
    atoms = [token for token in added if is_atom(token["content"], bool(token["special"]))]
    return renamed(text, {token["content"]: f"<|\ue000{token['id']}\ue001|>" for token in atoms})


def renamed(text: str, aliases: Mapping[str, str]) -> str:
    """tokenizer.json with other names for some of its added tokens, by their names; single letters in the vocabulary
    keep theirs, since words are made of these.
    """
    description = json.loads(text)
    for token in description.get("added_tokens") or ():
        token["content"] = aliases.get(token["content"], token["content"])
    pieces = {name: alias for name, alias in aliases.items() if len(name) > 1}
    model = description["model"]
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {pieces.get(name, name): number for name, number in model["vocab"].items()}
    elif model.get("vocab"):
        model["vocab"] = [[pieces.get(name, name), score] for name, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = pieces.get(model["unk_token"], model["unk_token"])
    description["post_processor"] = None  # unused, and it names special tokens
    return json.dumps(description)
