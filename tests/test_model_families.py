"""`scripts/model_families`: its page says what its results say, and the results are what an attempt gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import transformers
from families import attempt as attempts
from families.attempt import attempt, has_exact_rows
from families.page import PAGE, written
from families.sizes import tiny
from families.sweep import RESULTS, read
from specexport.engines.base import Logits
from specexport.exporter.tracing import attention
from support.doubles import CONTRACT as DOUBLES
from support.doubles import FakeDecoder
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KEPT = read(RESULTS)


def test_the_page_is_up_to_date() -> None:
    if transformers.__version__ != KEPT.transformers:
        pytest.skip(f"the page is of transformers {KEPT.transformers}, which may know other families")
    assert PAGE.read_text(encoding="utf-8") == written(KEPT), "run scripts/model_families.py --page-only"
    assert set(KEPT.families) <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_every_refusal_is_a_line_that_names_a_cause() -> None:
    for family, outcome in KEPT.families.items():
        assert (outcome.reason == "") is (outcome.status == "proved"), family
        assert "\n" not in outcome.reason, family
        assert "Traceback" not in outcome.reason, family


def test_rows_that_depend_on_the_width_of_a_pass_are_seen() -> None:
    assert has_exact_rows(FakeDecoder(), DOUBLES)
    for width in (4, DOUBLES.prompt_chunk):

        class Off(FakeDecoder):
            def step(self, tokens: Sequence[int], position: int, width: int = width) -> Logits:
                logits = super().step(tokens, position)
                self.rows[position] += 1e-9 * (len(tokens) == width)
                return logits + np.float32(1e-6 * (len(tokens) == width))

        assert not has_exact_rows(Off(), DOUBLES)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["helium", "falcon"])
def test_an_attempt_gives_what_the_table_says(family: str) -> None:
    assert attempt(family) == KEPT.families[family]


@pytest.mark.nightly
def test_a_wrong_graph_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a family whose tiny model has a window."""
    monkeypatch.setattr(attempts, "tiny", lambda family: tiny("starcoder2"))
    emit = attention.EMITTERS["kernels"]
    monkeypatch.setitem(attention.EMITTERS, "kernels", lambda q, k, v, layer: emit(q, k * 1.5, v, layer))
    outcome = attempt("starcoder2")
    assert outcome.status == "failed"
    assert "standard deviations off" in outcome.reason
