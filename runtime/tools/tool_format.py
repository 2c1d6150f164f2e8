"""How a chat template writes tool calls, as data: the texts around names and arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True)
class Parameters:
    """Arguments are: opening, key, text or other, value, its end, and joint before each further key.

    none: the text for no arguments, instead of all that. text, text_end: around a text, which does not contain
    `text_end`; other, other_end: around any other value, which is JSON. python: whether `True`, `False` and `None` are
    used.
    """

    opening: str
    none: str
    text: str
    other: str
    text_end: str
    other_end: str
    joint: str
    python: bool = False

    @property
    def written(self) -> str:
        return self.opening + self.none + self.text + self.other + self.text_end + self.other_end + self.joint

    @property
    def null(self) -> str:
        return "None" if self.python else "null"


@dataclass(frozen=True)
class ToolFormat:
    """A turn with calls is: content, trigger, opening, call, then possibly next and a further call, and end.

    A call is: name, between, arguments as a JSON object, closing.

    next: None if a turn has one call at most. leads: whether the trigger counts only at the beginning of a turn.
    spaced: whether commas and colons of JSON are followed by spaces. parameters: the form of arguments that are written
    one by one, if they are. takes_results: whether the template writes the results of tools; takes_texts: whether it
    writes arguments that are a text. atoms: ids of the tokens that these texts name; shown: those of them that have no
    text of their own. free: ids of tokens such as `<think>`, which grammars know by their ids alone and which are
    ordinary text here.
    """

    trigger: str
    opening: str
    between: str
    closing: str
    next: str | None
    end: str = ""
    leads: bool = False
    spaced: bool = True
    short_ids: bool = False
    parameters: Parameters | None = None
    takes_results: bool = True
    takes_texts: bool = True
    atoms: tuple[tuple[str, int], ...] = ()
    shown: tuple[int, ...] = ()
    free: tuple[int, ...] = ()

    @property
    def written(self) -> str:
        """All texts of calls besides names and values."""
        literal = self.trigger + self.opening + self.between + self.closing + (self.next or "") + self.end
        return literal + (self.parameters.written if self.parameters is not None else "")

    def call_id(self, name: str) -> str:
        """In the form for the template: Mistral's refuse ids that are not nine letters and digits."""
        if not self.short_ids or re.fullmatch("[a-zA-Z0-9]{9}", name):
            return name
        return sha256(name.encode()).hexdigest()[:9]
