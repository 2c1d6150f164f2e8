"""`scripts/roofline.py`: arithmetic by hand, and that the docs show what it prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import roofline
from specexport.bundle import Bundle

DOCS = Path(__file__).parents[1] / "docs/gpu.md"


def test_the_docs_show_its_table() -> None:
    assert roofline.table() in DOCS.read_text(encoding="utf-8")


def test_a_round_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SHARE_OF_BANDWIDTH", 0.5)
    card = roofline.Card("", 2e12, 1e-6)
    target, draft = roofline.Model(1e9, 1e6, 100, 100), roofline.Model(1e8, 0, 50)
    assert target.pass_ms(card) == pytest.approx(1.0 + 0.1 + 0.1)
    found = roofline.speed(target, draft, card, "greedy", 2)
    assert found.round_ms == pytest.approx(found.target_ms + 2 * (0.1 + 0.05) + 0.010 + 0.05)
    assert found.drafted == pytest.approx(1e3 * (1 + 0.75 + 0.75**2) / found.round_ms)


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "rows"), [(64, [64, 64]), (3000, [1024, 3000]), (9000, [1024, 1024])])
def test_a_drafts_passes_read_the_whole_of_a_short_cache(compilable: Path, capacity: int, rows: list[int]) -> None:
    bundle = Bundle.open(compilable)
    contract = replace(bundle.manifest.contract, capacity=capacity)
    pair = bundle.manifest.pair
    assert [roofline.of_bundle(bundle, role, spec, contract).rows for role, spec in pair.items()] == rows


@pytest.mark.slow
def test_a_bundles_passes_read_all_but_the_tables_that_they_look_up(compilable: Path) -> None:
    bundle = Bundle.open(compilable)
    target = bundle.manifest.target
    found = roofline.of_bundle(bundle, "target", target, bundle.manifest.contract)
    stored = bundle.manifest.files[target.weights].bytes
    table = stored - found.weights
    assert table == 0 or table % target.vocab_size == 0
    assert 0 < found.weights <= stored
    assert found.row * bundle.manifest.contract.capacity == 3 * target.cache_bytes(bundle.manifest.contract)
