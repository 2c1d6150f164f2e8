"""Verdicts on grammars, remembered so that no invalid grammar is compiled twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from ...errors import GrammarError
from .grammar import Grammar

KEPT = 4096


@dataclass(frozen=True)
class Verdict:
    """message: what is wrong, empty for nothing. code: as in `GrammarError`."""

    message: str = ""
    code: str = "invalid_schema"

    @property
    def right(self) -> bool:
        return not self.message

    def check(self) -> None:
        """Raises `GrammarError`."""
        if self.message:
            raise GrammarError(self.message, self.code)


class Verdicts:
    """The verdicts on the last `KEPT` grammars, by digest. May be used from any thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, grammar: Grammar) -> Verdict | None:
        """None if unknown."""
        digest = _digest(grammar)
        with self._lock:
            found = self._known.get(digest)
            if found is not None:
                self._known.move_to_end(digest)
            return found

    def note(self, grammar: Grammar, verdict: Verdict) -> None:
        digest = _digest(grammar)
        with self._lock:
            self._known[digest] = verdict
            while len(self._known) > KEPT:
                self._known.popitem(last=False)


def _digest(grammar: Grammar) -> bytes:
    value = (grammar.kind, grammar.text, grammar.whitespace, grammar.shown, grammar.thinking, grammar.lenient)
    return sha256(repr(value).encode("utf-8", "backslashreplace")).digest()
