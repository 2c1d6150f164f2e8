"""The faults of `scripts/mutants` can still be planted: a piece that was changed must be changed there too."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutation.catalogue import MUTANTS
from mutation.mutant import Mutant, StaleMutantError
from mutation.syntax import replaced

ROOT = Path(__file__).parents[1]
CODE = """\
class Round:
    def first(self, place):
        if place > 0:  # a comment
            self.rows = (
                place
                + 1,
            )
            return f"{place}: {self.rows}"

    def next(self, place):
        return place + 1
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_piece_is_there_once(mutant: Mutant) -> None:
    assert mutant.planted(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8")
    assert all((ROOT / test).exists() for test in mutant.tests)


@pytest.mark.parametrize(
    ("old", "new", "within", "line"),
    [
        ("(place + 1,)", "(place,)", "", "self.rows = ((place,))"),
        ("place+1", "place - 1", "Round.next", "return (place - 1)"),
        ("if place>0:", "if False:", "", "if (False):  # a comment"),
        ("self.rows = place + 1,\nreturn f'{place}: {self.rows}'", "a()\nb()", "", "a()\n            b()\n"),
        ("self.rows = place + 1,", "", "first", "            pass\n            return"),
    ],
)
def test_layout_comments_and_quotes_do_not_matter(old: str, new: str, within: str, line: str) -> None:
    (text,) = replaced(CODE, old, new, within)
    assert line in text
    compile(text, "<mutant>", "exec")


def test_a_piece_that_is_there_twice_or_elsewhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/round.py").write_text(CODE)
    with pytest.raises(StaleMutantError, match=r"2 times.*within"):
        Mutant("a", "moved/round.py", "place + 1", "0", ()).planted(tmp_path)
    with pytest.raises(StaleMutantError, match=r"it is in moved/round\.py now"):
        Mutant("a", "round.py", "if place > 0:", "if True:", ()).planted(tmp_path)
