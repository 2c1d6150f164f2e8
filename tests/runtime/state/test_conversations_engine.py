"""Conversations over a real engine: needs what builds a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
import specexport

pytest.importorskip("transformers", reason="the exporter's packages are not installed, which build the bundle")


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
