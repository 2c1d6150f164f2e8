"""`scripts/family_losslessness`: what it asks, and that it tells an output that is not the target's own."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import losslessness
from families.losslessness import ask
from specexport import load
from specexport.runtime.proofs.equality import decode_request


def test_an_output_that_is_not_the_targets_own_is_told(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token of one output, where no two logits are near each other."""
    asked = 0

    def wrong(*given: Any) -> Any:
        nonlocal asked
        output, asked = decode_request(*given), asked + 1
        if asked != 3:
            return output
        return replace(output, tokens=(*output.tokens[:4], (output.tokens[4] + 1) % 96, *output.tokens[5:]))

    monkeypatch.setattr(losslessness, "decode_request", wrong)
    with load(built, policy=False, threads=1) as session, load(built, policy=False, threads=1) as plain:
        found = ask(session, plain, 4, random.Random(0))
    assert (found.equal, found.ties, found.different) == (3, 0, 1)
    assert found.first.startswith("request 2: ")
    assert "token 4, margin" in found.first
    assert "1 different, first request 2" in str(found)
