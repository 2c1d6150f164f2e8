"""All mutants. `faults/` has them, by the part of the tree that they are in:

    exporter/memory.py tests/exporter/test_memory.py
      a fault's name @ Function.that_has_it
        old piece => new piece
      another fault's name
      - old piece, which is long or has several lines
      + new piece

The tests are those likeliest to catch the faults; a long list goes on in the next line. `@` is for pieces that others
have too. With nothing behind `=>` or no `+`, the piece is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .mutant import Mutant


def parsed(text: str) -> Iterator[Mutant]:
    """The mutants of a file of `faults/`. Raises ValueError for a line that is none of these."""
    for group in text.split("\n\n")[1:]:  # the first says what the file is about
        heading, *faults = re.split(r"\n  (?![-+ ](?:[ \n]|$))", group)
        file, *tests = heading.split()
        for fault in faults:
            name, *lines = fault.splitlines()
            old, new = ([line[4:] for line in lines if line.startswith(mark)] for mark in ("  -", "  +"))
            if not old:
                ((left, right),) = (line.split("=>") for line in lines)
                old, new = [left.strip()], [right.strip()]
            elif len(old) + len(new) != len(lines):
                raise ValueError(f"{name}: expected lines that begin with - or +, found {lines}")
            name, _, within = name.partition(" @ ")
            yield Mutant(name, file, "\n".join(old), "\n".join(new), tuple(tests), within)


FAULTS = sorted((Path(__file__).parent / "faults").glob("*.txt"))
MUTANTS = tuple(mutant for path in FAULTS for mutant in parsed(path.read_text(encoding="utf-8")))
