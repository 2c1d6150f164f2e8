"""The faults of `scripts/mutants` can still be planted: a text that was changed must be changed there too."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutation.catalogue import MUTANTS
from mutation.mutant import Mutant

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_is_there_once(mutant: Mutant) -> None:
    assert mutant.planted(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8")
    assert all((ROOT / test).exists() for test in mutant.tests)
