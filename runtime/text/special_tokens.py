"""Special tokens in chat: only the template can write them. Text of a message that looks like one stays text.

A place where a message spells a special token, or begins to, is masked before the template is rendered. So the special
tokens in the rendered text are the template's own. Removing the masks may create more of them, in the text or in its
tokens (a normalizer may write `<|END|>` in small letters). Then the text is encoded by a copy of the tokenizer that has
other names for its special tokens, and the template's are renamed accordingly.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from ...errors import PromptError
from ..grammar.lark import is_atom, renamed
from .messages import Message

CODE = re.compile(r"\d{7}", re.ASCII)  # after a mark


class SpecialTokens:
    """The tokens that the tokenizer marks as special. Other added tokens, such as `<think>`, are ordinary text, and
    become what the tokenizer makes of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.ids = {token.content: number for number, token in added.items() if token.special and token.content}
        self.atoms = {token.content: number for number, token in added.items() if is_atom(token.content, token.special)}
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # which nothing matches
        self._beginnings = {name[:size] for name in self.ids for size in range(1, len(name))}
        # Names that no message can contain, since nobody can guess them.
        nonce = secrets.token_hex(8)
        self._aliases = {name: f"\ue000{nonce}{place:06}\ue001" for place, name in enumerate(self.ids)}

    def mask(self, messages: Sequence[Message]) -> tuple[list[dict[str, Any]], str]:
        """The messages, and the mark that replaces the places where their texts spell a special token.

        The mark replaces the token's first character, whose code point follows in seven digits.
        """
        mark = f"{secrets.randbelow(10**20):020}"  # digits, since templates change the case, trim, and write JSON
        return [self._mask_message(message, mark) for message in messages], mark

    def mask_more(self, value: Mapping[str, Any], mark: str) -> dict[str, Any]:
        """Other values for the template, masked like its messages."""
        masked: dict[str, Any] = self._mask(value, mark)
        return masked

    def encode(self, rendered: str, mark: str) -> list[int]:
        """Token ids of the template's text. Raises `PromptError` where the tokenizer cannot write one as text."""
        # No pattern contains the mark: `re` would cache one for each request.
        first, *others = rendered.split(mark)
        marked = [(chr(int(rest[:7])), rest[7:]) if CODE.match(rest) else (mark, rest) for rest in others]
        literal = first + "".join(character + rest for character, rest in marked)
        of_template = self._names.findall(rendered)
        if self._names.findall(literal) == of_template:
            tokens = self._tokenizer.encode(literal, add_special_tokens=False).ids
            if self._are(tokens, of_template):
                return tokens
        aliased = self._rename(first) + "".join(character + self._rename(rest) for character, rest in marked)
        tokens = self._renamed.encode(aliased, add_special_tokens=False).ids
        if not self._are(tokens, of_template):
            raise PromptError(
                "the messages contain a special token that this tokenizer cannot write as text; leave it out",
                "messages",
            )
        return tokens

    def _rename(self, text: str) -> str:
        return self._names.sub(lambda match: self._aliases[match[0]], text)

    def _are(self, tokens: Sequence[int], names: Sequence[str]) -> bool:
        """Whether the special tokens among `tokens` have these names. The unknown token counts as text."""
        special = set(self.ids.values())
        if [token for token in tokens if token in special] == [self.ids[name] for name in names]:
            return True
        special.discard(self._unknown)
        wanted = [self.ids[name] for name in names if self.ids[name] != self._unknown]
        return [token for token in tokens if token in special] == wanted

    def _mask_message(self, message: Message, mark: str) -> dict[str, Any]:
        masked = {key: value if key == "role" else self._mask(value, mark) for key, value in message.items()}
        if isinstance(message.get("content"), list):
            masked["content"] = [self._mask(part, mark) | {"type": part["type"]} for part in message["content"]]
        return masked

    def _mask(self, value: Any, mark: str) -> Any:
        if isinstance(value, Mapping):
            return {
                self._mask_text(key, mark, ()) if isinstance(key, str) else key: self._mask(item, mark)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._mask(item, mark) for item in value]
        return self._mask_text(value, mark, self._beginnings) if isinstance(value, str) else value

    def _mask_text(self, text: str, mark: str, beginnings: Collection[str]) -> str:
        # After a text that ends with a token's beginning, the template may write the rest of it.
        ends = range(max(0, len(text) - max(map(len, beginnings), default=0)), len(text))
        places = {place for place in ends if text[place:] in beginnings}
        place = -1
        while (match := self._names.search(text, place + 1)) is not None:  # they may overlap
            place = match.start()
            places.add(place)
        parts, start = [], 0
        for place in sorted(places):
            parts.append(f"{text[start:place]}{mark}{ord(text[place]):07}")
            start = place + 1
        return "".join([*parts, text[start:]])

    @cached_property
    def _unknown(self) -> int:
        """The id of the unknown token, -1 for none."""
        model = json.loads(self._tokenizer.to_str())["model"]
        if model.get("unk_token") is not None:
            number = self._tokenizer.token_to_id(model["unk_token"])
        else:
            number = model.get("unk_id")
        return -1 if number is None else int(number)

    @cached_property
    def _renamed(self) -> Tokenizer:
        """The tokenizer with the aliases as names and the same ids."""
        try:
            return Tokenizer.from_str(renamed(self._tokenizer.to_str(), self._aliases))
        except Exception as error:  # tokenizers raises a bare Exception
            raise PromptError(
                f"the messages contain a special token, which this tokenizer cannot write as text ({error}); "
                "leave it out",
                "messages",
            ) from None
