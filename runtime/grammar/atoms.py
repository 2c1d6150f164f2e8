"""Tokens that a grammar knows by their ids alone, whatever their names spell: special tokens and similar ones.

llguidance treats every added token with a name like `<think>` as a special token, which cannot be part of a text. But
if a grammar forces such a text, llguidance writes it with that token: the only allowed token then cannot be taken. So
in the tokenizer that it reads, these tokens have other names.
"""

from __future__ import annotations

import json
from typing import Any


def is_atom(token: dict[str, Any]) -> bool:
    """token: one of tokenizer.json's `added_tokens`."""
    name: str = token["content"]
    return bool(token["special"]) or (name.startswith("<") and name.endswith(">"))


def renamed(text: str) -> str:
    """tokenizer.json with names for its atoms that no text spells."""
    description = json.loads(text)
    atoms = [token for token in description.get("added_tokens") or () if is_atom(token)]
    aliases = {token["content"]: f"<|\ue000{token['id']}\ue001|>" for token in atoms}
    for token in atoms:
        token["content"] = aliases[token["content"]]
    model = description["model"]
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {aliases.get(name, name): number for name, number in model["vocab"].items()}
    elif model.get("vocab"):
        model["vocab"] = [[aliases.get(name, name), score] for name, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = aliases.get(model["unk_token"], model["unk_token"])
    description["post_processor"] = None  # unused, and it names special tokens
    return json.dumps(description)
