"""In fp32 on the kernels, greedy speculative text is plain text, and each row of logits behind it has the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport import load
from specexport.engines.base import Logits
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from support.hybrids import save_hybrid
from support.tiny import LLAMA, VOCAB, make_tokenizer, save_model

pytest.importorskip("specexport_kernels")
pytestmark = pytest.mark.slow

# The target's heads are turned in part, the draft keeps states.
PHI = LLAMA | dict(hidden_size=64, intermediate_size=96, partial_rotary_factor=0.5)
NEW, WIDEST = 40, 9

# By position: the token of the last pass over it, and its row of logits.
Rows = dict[int, tuple[int, bytes]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("exact")
    target, draft = save_model(base / "target", "phi", config=PHI), save_hybrid(base / "draft", "convolution")
    make_tokenizer().save_pretrained(target)
    options = BuildOptions(max_seq_len=128, max_draft_tokens=WIDEST - 1, engines=("onnxruntime",), precision="fp32")
    build(str(target), str(draft), base / "bundle", options)
    return base / "bundle"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Of the target, by position."""
    rows: Rows = {}
    step = OrtDecoder.step

    def recorded(self: OrtDecoder, tokens: Sequence[int], position: int) -> Logits:
        logits = step(self, tokens, position)
        if self._path.name.startswith("target") and len(logits) == len(tokens):
            for place, (token, row) in enumerate(zip(tokens, logits, strict=True), start=position):
                rows[place] = int(token), row.tobytes()
        return logits

    monkeypatch.setattr(OrtDecoder, "step", recorded)
    return rows


@pytest.mark.parametrize(
    ("drafter", "count"), [("model", 1), ("model", 4), ("model", 8), ("ngram", 5), ("ngram+model", 7)]
)
def test_speculative_rows_have_the_bits_of_plain_ones(drafter: str, count: int, bundle: Path, seen: Rows) -> None:
    prompt = np.random.default_rng(count).integers(2, VOCAB, 9).tolist() * 2
    asked: dict[str, Any] = dict(max_new_tokens=NEW, stop_token_ids=())
    with load(bundle, policy=False) as session:
        plain = session.generate(prompt, speculate=False, **asked)
        alone = dict(seen)
        session.reset()
        seen.clear()
        fast = session.generate(prompt, drafter=drafter, num_draft_tokens=count, **asked)
    assert fast.tokens == plain.tokens
    if "model" in drafter:
        assert fast.statistics.drafted > fast.statistics.accepted
    compared = [place for place in range(len(prompt) - 1, len(prompt) + NEW - 1) if place in seen and place in alone]
    assert len(compared) > NEW / 2
    assert {place for place in compared if seen[place] != alone[place]} == set()
