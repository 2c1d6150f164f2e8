"""What a draft reads of the target while it is calibrated: texts one by one, and at last all of them, padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts import base
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.weights.gptq import choose_integers, together
from specexport.exporter.weights.recipe import WeightRecipe
from support.hidden_drafts import INNER, WIDTH, save_speculators, save_target
from support.tiny import VOCAB
from torch import Tensor

# The second is the first and more; the last two differ from it in what padding is.
TEXTS = [torch.tensor([tokens]) for tokens in ([5, 9, 7], [5, 9, 7, 3, 8, 4, 6], [5, 9, 7, 0, 0, 2], [5, 9, 7, 0])]
UP = "layers.0.mlp.up_proj.weight"
LONGEST = max(text.shape[1] for text in TEXTS)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    folder = tmp_path_factory.mktemp("draft")
    draft = find_draft(str(save_speculators(folder)), find_checkpoint(str(save_target(folder / "target"))))
    return lambda: draft.load("fp32")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What the target reads."""
    read, seen = base.HiddenDraft.tap_target, list[Tensor]()
    monkeypatch.setattr(
        base.HiddenDraft, "tap_target", lambda draft, tokens: (seen.append(tokens), read(draft, tokens))[1]
    )
    return seen


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)], ids=str)
def test_texts_that_were_read_are_read_no_more(
    order: tuple[int, ...], load: Callable[[], Any], passes: list[Tensor]
) -> None:
    model = load()
    alone = {index: model.read_target(TEXTS[index]) for index in order}
    padded = model.read_target(together(TEXTS, 1)[0])
    assert len(passes) == len(TEXTS)
    assert padded.shape == (len(TEXTS), LONGEST, alone[0].shape[2])
    for index, text in enumerate(TEXTS):
        torch.testing.assert_close(padded[index, : text.shape[1]], alone[index][0])


def test_a_text_that_was_not_is(load: Callable[[], Any], passes: list[Tensor]) -> None:
    """Though one is that begins like it."""
    model = load()
    model.read_target(TEXTS[0])
    padded = model.read_target(together(TEXTS[:2], 1)[0])
    assert len(passes) == 2
    assert torch.equal(padded[1:], load().read_target(TEXTS[1]))


def test_gptq_rounds_by_what_the_draft_reads_of_the_target(load: Callable[[], Any]) -> None:
    """Padded texts that are known, and those that the target reads again, give the same integers."""
    texts = [
        torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(length)) for length in (9, 30)
    ]
    found = []
    for known in (True, False):
        model = load()
        if known:
            _ = [model.read_target(text) for text in texts]
        (chosen,) = choose_integers(model, texts, {UP: WeightRecipe("int8")}).weights.values()
        assert chosen.stored is not None
        found.append(chosen.stored[0])
    assert found[0].shape == (INNER, WIDTH)
    assert (found[0] == found[1]).mean() > 0.99  # a value at the edge of a step may fall to the other side
