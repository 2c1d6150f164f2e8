"""How many draft tokens are kept, against drafts of one place at a time; and what a build says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.bundle import LAST
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts import measured
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.hidden_drafts.eagle3 import Eagle3Draft, Eagle3Form
from specexport.exporter.hidden_drafts.measured import acceptance, acceptance_notes, held_out, neighbours
from specexport.exporter.weights.texts import read_texts
from support.block_drafts import save_block, save_block_target
from support.hidden_drafts import TAPS, TARGET_LAYERS, WIDTH, save_speculators, save_target, tables, tensors
from support.mtp_layers import FAMILIES, saved
from support.tiny import VOCAB
from torch import Tensor
from transformers import DynamicCache

KEPT, LENGTH = 16, 40
TEXT = torch.randint(0, VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(4))
STATES = tuple(torch.randn(TARGET_LAYERS + 1, 1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(5)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("draft")
    target = find_checkpoint(str(save_target(folder / "target")))
    save_speculators(folder, tables(KEPT) | tensors(kept=KEPT), draft_vocab_size=KEPT)
    return find_draft(str(folder), target)


@pytest.fixture
def model(checkpoint: Any) -> Any:
    return checkpoint.load("fp32")


def target_says(model: Any, logits: Tensor) -> None:
    """logits `[1, LENGTH, VOCAB]`."""
    model.watch_target = lambda text: (STATES, logits) if torch.equal(text, TEXT) else pytest.fail("another text")


def trained(model: Any, form: Eagle3Form) -> Tensor:
    """Logits of a target that says what the head says first, where it is read in this form."""
    model.form, own = form, model.form
    found = model(TEXT, model.fuse(torch.cat([STATES[tap] for tap in form.taps], -1))).logits
    model.form = own
    logits = torch.full((1, LENGTH, VOCAB), -1e9)
    logits[:, 1:, model.target_ids] = found[:, :-1]
    logits[:, 0] = 0
    return logits


def drafted(model: Eagle3Draft, form: Eagle3Form) -> list[list[Tensor]]:
    """The distributions of two tokens of each place, one pass after the other."""
    model.read_as(form)
    fused = model.fuse(torch.cat([STATES[tap] for tap in form.taps], -1))
    found = []
    for row in range(LENGTH - 2):
        cache = DynamicCache()
        first = model(TEXT[:, : row + 1], fused[:, : row + 1], past_key_values=cache)
        second = model(TEXT[:, row + 1 : row + 2], first.feedback[:, -1:], past_key_values=cache)
        found.append([one.logits[0, -1].softmax(-1) for one in (first, second)])
    return found


@pytest.mark.parametrize("window", [0, 1, 2])
def test_kept_tokens_of_each_form(window: int, model: Any) -> None:
    form, model.windows = model.form, (window,)
    forms = [form, replace(form, feedback="post"), replace(form, taps=(3, 5, 6)), replace(form, theta=10.0)]
    target_says(model, logits := torch.randn(1, LENGTH, VOCAB, generator=torch.Generator().manual_seed(6)))
    probs = logits[0].softmax(-1)[:, model.target_ids]
    expected = [
        torch.tensor(
            [
                [float(torch.minimum(draft, probs[row + 1 + step]).sum()) for step, draft in enumerate(pair)]
                for row, pair in enumerate(drafted(model, one))
            ]
        ).T
        for one in forms
    ]
    model.read_as(form)
    found = acceptance(model, [TEXT], forms)
    assert model.form == form
    assert len({float(one.mean()) for one in found}) == (3 if window == 1 else 4)  # alone, a row has no angles
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_target_that_says_what_the_draft_says_keeps_everything(model: Any) -> None:
    target_says(model, trained(model, model.form))
    first, second = acceptance(model, [TEXT], [model.form])[0]
    torch.testing.assert_close(first, torch.ones(LENGTH - 2), atol=1e-4, rtol=1e-4)
    assert float(second.mean()) < 0.99


@pytest.mark.parametrize(
    ("taps", "told"),
    [((2, 4, 5), None), ((3, 5, 6), "2,4,5"), ((1, 3, 4), "2,4,5"), ((5, 4, 2), "2,4,5"), ((1, 2, 7), None)],
    ids=str,
)
def test_a_better_reading_close_to_the_configs_is_named(taps: Sequence[int], told: str | None, model: Any) -> None:
    target_says(model, trained(model, model.form))
    model.form = form = replace(model.form, taps=tuple(taps))
    note, read, *warnings = acceptance_notes(model, [TEXT, TEXT[:, :2]])
    assert model.form == form
    assert ",".join(map(str, taps)) in read
    assert ("100.0%" in note) == (taps == TAPS)
    assert [f"--draft-taps {told} --draft-feedback pre" in line for line in warnings] == [True] * (told is not None)


def test_of_several_better_readings_the_best_is_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [torch.full((2, 9), share) for share in (0.1, 0.2, 0.4, 0.3, 0.2)]
    monkeypatch.setattr(measured, "acceptance", lambda *_: kept)
    *_, warning = acceptance_notes(model, [TEXT])
    assert "--draft-taps 1,3,4 --draft-feedback pre" in warning
    assert "40.0%" in warning


@pytest.mark.parametrize(("first", "told"), [(0.040, False), (0.055, True)])
def test_a_reading_that_is_hardly_faster_is_not_named(
    first: float, told: bool, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However sure it is: 1.0416 instead of 1.0405 tokens per round, and 1.0580."""
    kept = [torch.full((2, 9), 0.039), torch.full((2, 9), first), *[torch.full((2, 9), 0.03)] * 3]
    monkeypatch.setattr(measured, "acceptance", lambda *_: kept)
    assert len(acceptance_notes(model, [TEXT])) == 2 + told


def test_another_feedback_is_named(model: Any) -> None:
    """The target says second what the head says with the other."""
    right = replace(model.form, feedback="post")
    logits = torch.full((1, LENGTH, VOCAB), -1e9)
    logits[:, :2] = 0
    for row, (_, second) in enumerate(drafted(model, right)):
        logits[0, row + 2, model.target_ids] = second.log()
    model.form = replace(right, feedback="pre")
    target_says(model, logits)
    *_, warning = acceptance_notes(model, [TEXT])
    assert "--draft-taps 2,4,5 --draft-feedback post" in warning


def test_chance_is_seldom_taken_for_a_better_reading(model: Any) -> None:
    told = 0
    for seed in range(20):
        target_says(model, torch.randn(1, LENGTH, VOCAB, generator=torch.Generator().manual_seed(seed)))
        told += len(acceptance_notes(model, [TEXT])) - 2
    assert told < 3
    assert acceptance_notes(model, [TEXT[:, :2]]) == acceptance_notes(model, []) == ()


def test_other_readings_stay_within_the_target(model: Any) -> None:
    def taps_of(*taps: int) -> list[tuple[int, ...]]:
        return [one.taps for one in neighbours(replace(model.form, taps=taps), TARGET_LAYERS)]

    assert taps_of(2, 4, 5) == [(3, 5, 6), (1, 3, 4), (5, 4, 2), (2, 4, 5)]
    assert taps_of(0, 4, 7) == [(7, 4, 0), (0, 4, 7)]
    assert taps_of(3) == [(4,), (2,), (3,)]
    assert taps_of(2, 4, LAST) == [(2, 4, LAST)]


def test_a_block_and_an_mtp_layer(tmp_path: Path) -> None:
    target = find_checkpoint(str(save_block_target(tmp_path / "target")))
    block = find_draft(str(save_block(tmp_path / "block", "dspark")), target).load("fp32")
    (kept,) = acceptance(block, [TEXT], [block.form])
    slots = block.form.slots
    assert kept.shape == (slots, (LENGTH - 1) // slots)
    logits = block(TEXT).logits[0].softmax(-1)
    probs = block.watch_target(TEXT)[1][0].softmax(-1)
    if block.target_ids is not None:
        probs = probs[:, block.target_ids]
    torch.testing.assert_close(kept[1, 2], torch.minimum(logits[2 * slots + 1], probs[2 * slots + 2]).sum())
    assert f"tokens 1 to {slots} " in acceptance_notes(block, [TEXT])[0]
    mtp = find_draft("mtp", find_checkpoint(str(saved(FAMILIES["GLM-4.5"], tmp_path / "mtp")[0]))).load("fp32")
    (note,) = acceptance_notes(mtp, [TEXT % mtp.embed_tokens.num_embeddings])
    assert "%" in note


def test_the_target_reads_held_out_texts_once(checkpoint: Any, model: Any) -> None:
    texts = held_out(checkpoint.tokenizer, read_texts(None), VOCAB)
    assert 500 < sum(text.shape[1] for text in texts) <= 1024
    acceptance(model, texts[:2], [model.form])
    expected = checkpoint.load("fp32").read_target(texts[1])
    model.__dict__["_target"] = None
    assert torch.equal(model.read_target(texts[1]), expected)
    assert held_out(checkpoint.tokenizer, read_texts(None), 3) == []
