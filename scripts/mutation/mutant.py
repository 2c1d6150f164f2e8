"""A mutant: a piece of a file's text, and its replacement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class StaleMutantError(Exception):
    """Raised if the mutant's text is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """old: text that occurs once in the file. new: its replacement. tests: files and folders that are most likely to
    catch the fault.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, root: Path) -> str:
        """The file's text with the fault in it. Raises `StaleMutantError`."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        if text is None:
            raise StaleMutantError(f"{self.name}: there is no {self.file}; say where its text is now")
        found = text.count(self.old)
        if found != 1:
            raise StaleMutantError(f"{self.name}: {self.file} holds {self.old!r} {found} times, expected once")
        return text.replace(self.old, self.new)
