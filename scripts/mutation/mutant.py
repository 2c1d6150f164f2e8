"""A mutant: a piece of a file, and its replacement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .syntax import replaced


class StaleMutantError(Exception):
    """Raised if the mutant's piece is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """old: what occurs once in the file; new: its replacement. tests: files and folders that are most likely to catch
    the fault.

    In Python, both are pieces of syntax: an expression, `if condition:` or statements. within: the qualified name of
    the function or class that has the piece, where others have it too. Anything else is found by its text.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    within: str = ""

    def planted(self, root: Path) -> str:
        """The file's text with the fault in it. Raises `StaleMutantError`."""
        path = root / self.file
        if not path.is_file():
            raise StaleMutantError(f"{self.name}: git tracks no {self.file}{self._elsewhere(root)}")
        versions = self.versions(path.read_text(encoding="utf-8"))
        if len(versions) != 1:
            place = f"{self.file} {self.within}".strip()
            hint = "; name the function or class in `within`" if versions else self._elsewhere(root)
            raise StaleMutantError(f"{self.name}: {place} has {self.old!r} {len(versions)} times, expected once{hint}")
        return versions[0]

    def versions(self, text: str) -> list[str]:
        """The text with the fault, for each place where the fault can be planted."""
        found = replaced(text, self.old, self.new, self.within) if self.file.endswith(".py") else []
        if not found and not self.within and text.count(self.old) == 1:
            return [text.replace(self.old, self.new)]
        return found

    def _elsewhere(self, root: Path) -> str:
        word = max(re.findall(r"\w+", self.old), key=len)
        for path in sorted(root.glob("[a-z]*/**/*" + Path(self.file).suffix)):
            elsewhere = path.relative_to(root).parts[0] in ("tests", "scripts", "benchmarks") or not path.is_file()
            text = "" if elsewhere else path.read_text(encoding="utf-8")
            if word in text and len(self.versions(text)) == 1:
                return f"; it is in {path.relative_to(root).as_posix()} now"
        return "; say what stands there now"
