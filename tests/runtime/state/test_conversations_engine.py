"""Conversations over a real engine: needs what builds a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
import specexport
from specexport.engines.catalogue import ENGINES
from specexport.errors import ParameterError
from specexport.runtime.state.conversations import usual_budget
from support.refusals import refused

pytest.importorskip("transformers", reason="the exporter's packages are not installed, which build the bundle")
A, B = [1] * 12, [2] * 12


def test_the_rows_of_a_real_engine_come_back(built: Path) -> None:
    """Bit for bit: two talks in turn, speculative, as each gives alone."""
    talks = [list(range(1 + which, 31 + which)) for which in range(2)]
    alone = []
    for talk in talks:
        with specexport.load(built) as session:
            alone.append([session.generate(talk[:end], max_new_tokens=6).tokens for end in (10, 20, 30)])
    with specexport.load(built, prompt_cache_bytes=1 << 24) as session:
        for turn, end in enumerate((10, 20, 30)):
            for which, talk in enumerate(talks):
                given = session.generate(talk[:end], max_new_tokens=6)
                assert given.tokens == alone[which][turn]
                assert given.statistics.restored_tokens >= (end - 11 if turn else 0)


def test_the_usual_budget_is_for_cpus(built: Path) -> None:
    with specexport.load(built, prompt_cache_bytes=None) as session:
        session.generate(A, max_new_tokens=2)
        session.generate(B, max_new_tokens=2)
        assert session.generate(A, max_new_tokens=2).statistics.restored_tokens > 0
    assert usual_budget("onnxruntime") == 512 << 20
    assert {usual_budget(name) for name in ENGINES if name != "onnxruntime"} == {0}


def test_a_budget_below_zero(built: Path) -> None:
    with refused(ParameterError, field="prompt_cache_bytes"):
        specexport.load(built, prompt_cache_bytes=-1)
