"""How many of two draft tokens are kept, against drafts of one place at a time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.hidden_drafts.eagle3 import Eagle3Draft, Eagle3Form
from specexport.exporter.hidden_drafts.measured import acceptance
from support.hidden_drafts import TARGET_LAYERS, WIDTH, save_speculators, save_target, tables, tensors
from support.tiny import VOCAB
from torch import Tensor
from transformers import DynamicCache

KEPT, LENGTH = 4, 40  # few tokens, so that some are right by chance


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("draft")
    target = find_checkpoint(str(save_target(folder / "target")))
    save_speculators(folder, tables(KEPT) | tensors(kept=KEPT), draft_vocab_size=KEPT)
    return find_draft(str(folder), target).load("fp32")


def drafted(model: Eagle3Draft, tokens: Tensor, states: tuple[Tensor, ...], form: Eagle3Form) -> list[list[int]]:
    """Two tokens of each place, one pass after the other."""
    model.form, model.taps = form, form.taps
    fused = model.fuse(torch.cat([states[tap] for tap in form.taps], -1))
    found = []
    for row in range(tokens.shape[1] - 2):
        cache = DynamicCache()
        first = model(tokens[:, 1 : row + 2], fused[:, : row + 1], past_key_values=cache)
        second = model(tokens[:, row + 2 : row + 3], first.feedback[:, -1:], past_key_values=cache)
        assert model.target_ids is not None
        found.append([int(model.target_ids[one.logits[0, -1].argmax()]) for one in (first, second)])
    return found


def test_kept_tokens_of_each_form(model: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, VOCAB, (1, LENGTH), generator=generator)
    states = tuple(torch.randn(1, LENGTH, WIDTH, generator=generator) for _ in range(TARGET_LAYERS + 1))
    forms = [replace(model.form, feedback=feedback) for feedback in ("pre", "post")]
    forms.append(replace(model.form, taps=(3, 5, 6)))
    each = [drafted(model, tokens, states, form) for form in forms]
    # The target says what the first form drafts first, of the place before.
    choice = torch.tensor([0, *(first for first, _ in each[0]), 0])
    logits = torch.nn.functional.one_hot(choice, VOCAB)[None].float()
    expected = []
    for pairs in each:
        right = [(first == choice[row + 1], second == choice[row + 2]) for row, (first, second) in enumerate(pairs)]
        expected.append(sum(int(first) + int(first and second) for first, second in right) / len(pairs))
    assert len(set(expected)) == 3
    assert expected[0] > 1

    def target(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=logits, hidden_states=states)

    reads: Any = target
    assert acceptance(model, reads, [tokens], forms) == pytest.approx(expected)
    assert acceptance(model, reads, [tokens[:, :2]], forms) == [0, 0, 0]
