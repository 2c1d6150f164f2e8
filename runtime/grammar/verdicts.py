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
    """reason: what is wrong, empty for nothing. The others: as in `GrammarError`."""

    reason: str = ""
    code: str = "invalid_schema"
    kind: str = ""
    line: int | None = None

    @classmethod
    def of(cls, error: GrammarError) -> Verdict:
        return cls(error.reason, error.code, error.kind, error.line)

    @property
    def right(self) -> bool:
        return not self.reason

    def check(self) -> None:
        """Raises `GrammarError`."""
        if self.reason:
            raise GrammarError(self.reason, code=self.code, kind=self.kind, line=self.line)


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
