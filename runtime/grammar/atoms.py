"""Tokens that a grammar knows by their ids alone, whatever their names spell: special tokens and similar ones.

llguidance treats every added token with a name like `<think>` as a special token, which cannot be part of a text. But
if a grammar forces such a text, llguidance writes it with that token: the only allowed token then cannot be taken. So
in the tokenizer that it reads, these tokens have other names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping


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
