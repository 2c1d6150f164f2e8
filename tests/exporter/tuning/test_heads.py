"""EAGLE-3 heads trained on answers: on a tiny target, in fp32."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from specexport.bundle import Bundle
from specexport.errors import OutputError, PairError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.base import hidden_states
from specexport.exporter.hidden_drafts.checkpoint import HiddenDraftCheckpoint, find_draft
from specexport.exporter.tuning import chain
from specexport.exporter.tuning.answers import Answers
from specexport.exporter.tuning.chain import STEPS, Lessons, judge_head, train_head
from specexport.exporter.tuning.heads import TUNED_RATE, Head, Lesson, find_target, open_head, read_states, save_head
from specexport.exporter.tuning.options import TuneOptions
from specexport.exporter.tuning.tune import tune
from support.pair import Pair
from support.refusals import refused
from support.tiny import VOCAB, edit_json, make_tokenizer, save_checkpoint
from support.tuning import quiet, silent
from transformers import DynamicCache

OPTIONS = TuneOptions(max_new_tokens=32, answers=1, epochs=8, vocabulary=64, inner=40)


@pytest.fixture(autouse=True)
def in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every host."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)


@pytest.fixture(autouse=True)
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of a tiny target are short."""
    monkeypatch.setattr(chain, "SIZE", 400)


@pytest.fixture
def head(pair: Pair, answers: Answers) -> Head:
    torch.manual_seed(0)
    return open_head(find_checkpoint(str(pair.target)), None, answers.training, OPTIONS)


@pytest.fixture
def lessons(head: Head, answers: Answers, tmp_path: Path) -> list[Lesson]:
    return read_states(head, [*answers.training, *answers.judging], tmp_path, silent)


def test_states_are_those_that_transformers_tells(head: Head, lessons: list[Lesson], tmp_path: Path) -> None:
    assert len(head.taps) > 2
    for one in lessons[::11]:
        states = hidden_states(head.target, torch.tensor([[*one.prompt, *one.tokens]]))
        exact = torch.cat([states[tap] for tap in head.taps], -1)[0, :-1]
        assert torch.allclose(one.states.float(), exact, atol=1e-4, rtol=1e-2)  # stored in bf16


def test_a_killed_process_leaves_no_file_of_states(head: Head, answers: Answers, tmp_path: Path) -> None:
    def look(done: int, total: int) -> None:
        assert not list(place.iterdir())

    place = tmp_path / "new" / "folder"  # of an output, whose answers are kept elsewhere
    assert read_states(head, answers.judging, place, look)


def test_states_that_do_not_fit_on_the_disk(
    head: Head, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space is taken at the start: where it is missing in a page of memory, the system kills the process."""

    def full(file: int, start: int, size: int) -> None:
        assert size == sum(2 * len(head.taps) * head.model.tap_width * (len(one) - 1) for one in answers.judging)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused(OutputError, tmp_path, os.strerror(errno.ENOSPC)):
        read_states(head, answers.judging, tmp_path, silent)


@pytest.mark.parametrize(("place", "window"), [(3, 0), (20, 0), (20, 2)])
def test_steps_of_all_places_are_those_of_a_session(head: Head, lessons: list[Lesson], place: int, window: int) -> None:
    """True rows up to a place with a cache, then drafted ones, which read what the row before gave back."""
    head.model.windows = (window,)
    one = max(lessons, key=len)
    batch = Lessons.of(head, [min(lessons, key=len), one])  # beside a shorter one
    at_once = list(batch.drafted(head, STEPS, 0.0))
    tokens = torch.tensor([[*one.prompt, *one.tokens]])
    cache = DynamicCache()
    taps = one.states[None, : place + 1, : -head.model.tap_width].float()
    given = head.model.fuse(taps)
    with torch.no_grad():
        for step in range(STEPS):
            width = given.shape[1]
            read = head.model(
                tokens[:, place + step + 2 - width : place + step + 2], given, past_key_values=cache, use_cache=True
            )
            given = read.feedback[:, -1:]
            logits = head.model.lm_head(at_once[step][1, place])
            assert torch.allclose(read.logits[0, -1], logits, atol=1e-4)


def test_a_new_head_has_the_targets_tables_and_the_most_frequent_tokens(
    head: Head, answers: Answers, pair: Pair
) -> None:
    kept = head.model.target_ids
    assert kept is not None
    assert len(kept) == head.model.lm_head.out_features == OPTIONS.vocabulary
    counts = torch.bincount(torch.tensor([t for one in answers.training for t in (*one.prompt, *one.tokens)]))
    left_out = torch.ones(len(counts), dtype=torch.bool).index_fill(0, kept[kept < len(counts)], False)
    assert counts[left_out].max() <= counts[kept[1:].clamp_max(len(counts) - 1)].min() + 1
    assert 1 in kept  # the end of an answer
    assert torch.equal(head.model.lm_head.weight, head.target.get_output_embeddings().weight[kept])


def test_training_leaves_the_targets_tables_and_the_head_is_read_again(
    head: Head, lessons: list[Lesson], answers: Answers, pair: Pair, tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in head.model.state_dict().items()}
    untrained = judge_head(head, lessons)
    assert train_head(head, lessons, OPTIONS, silent)
    after = head.model.state_dict()
    same = {name for name, value in before.items() if torch.equal(value, after[name])}
    assert same == {"embed_tokens.weight", "lm_head.weight"}
    head.model.half().float()
    judged = judge_head(head, lessons)
    for step in range(STEPS):
        assert sum(one.accepted for one in judged[step]) > sum(one.accepted for one in untrained[step])
    assert all(later.accepted <= first.accepted for first, later in zip(judged[0], judged[1], strict=True))
    assert [one.tokens for one in judged[1]] == [len(one.tokens) - 1 for one in lessons if len(one.tokens) > 1]
    save_head(head, tmp_path / "head")
    target = find_checkpoint(str(pair.target))
    saved = find_draft(str(tmp_path / "head"), target)
    assert isinstance(saved, HiddenDraftCheckpoint)
    assert not saved.warnings
    assert "embed_tokens.weight" not in saved.published.tensors
    again = open_head(target, saved, answers.training, OPTIONS)
    assert (again.model.form, again.rate) == (head.model.form, TUNED_RATE)
    assert judge_head(again, lessons) == judged
    save_head(replace(head, own=True), tmp_path / "own")
    own = find_draft(str(tmp_path / "own"), target)
    assert isinstance(own, HiddenDraftCheckpoint)
    assert open_head(target, own, answers.training, OPTIONS).own


def test_drafted_rows_are_learned_in_the_second_half_alone(
    head: Head, lessons: list[Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, loss_of = [], chain.loss_of

    def counted(head: Head, batch: Lessons, count: int) -> torch.Tensor:
        steps.append(count)
        return loss_of(head, batch, count)

    monkeypatch.setattr(chain, "loss_of", counted)
    train_head(head, lessons[:10], TuneOptions(epochs=10), silent)
    assert steps == sorted(steps)
    assert set(steps) == {1, STEPS}


def test_a_head_that_says_what_the_target_does_has_the_least_loss(
    head: Head, lessons: list[Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entropy of the target's own rows over the kept tokens, those of each step."""
    batch = Lessons.of(head, lessons[:3])
    kept = head.model.target_ids

    def said(self: Lessons, head: Head, steps: int, dropout: float) -> Iterator[torch.Tensor]:
        yield from (batch.last.roll(-1 - step, 1) for step in range(steps))

    monkeypatch.setattr(Lessons, "drafted", said)
    layer = head.target.get_output_embeddings().weight[kept]
    entropy = 0.0
    for one in range(3):
        for step in range(STEPS):
            known = batch.last[one, 1 + step : int(batch.lengths[one]) - 1] @ layer.T
            entropy += chain.DECAY**step * torch.distributions.Categorical(logits=known).entropy().sum().item()
    assert chain.loss_of(head, batch, STEPS).item() == pytest.approx(entropy, rel=1e-4)


def test_a_head_that_is_better_is_written(head: Head, answers: Answers, pair: Pair, tmp_path: Path) -> None:
    answers = Answers(answers.training, answers.training[::4])  # what it was trained on: so few tell little of others
    report = tune(head, answers, tmp_path / "head", replace(OPTIONS, epochs=20), False, quiet)
    assert report.draft == str(tmp_path / "head")
    assert (report.overall.route, report.overall.step) == ("all", 1)
    routes = dict.fromkeys(one.route for one in answers.judging)
    found = [(one.route, one.step) for one in report.routes]
    assert found == [*((one, 1) for one in routes), *((one, step) for step in (2, 3) for one in (*routes, "all"))]
    again = find_draft(report.draft, find_checkpoint(str(pair.target)))
    assert isinstance(again, HiddenDraftCheckpoint)
    known = open_head(find_checkpoint(str(pair.target)), again, answers.training, OPTIONS)
    worse = tune(replace(known, rate=1e-9), answers, tmp_path / "other", TuneOptions(epochs=1), False, quiet)
    assert worse.draft is None
    assert worse.overall.before == report.overall.after
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_targets_and_drafts_that_do_not_fit(built: Path, pair: Pair, tmp_path: Path) -> None:
    bundle = Bundle.open(built)
    with refused(UnsupportedModelError, pair.draft, "eagle3", field="draft"):
        find_target(bundle, str(pair.target), str(pair.draft))
    capped = Path(shutil.copytree(pair.target, tmp_path / "capped"))
    for key in ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier"):
        edit_json(capped / "config.json", **{key: 30.0})
        with refused(UnsupportedModelError, capped, key, "--kind", field="target"):
            find_target(bundle, str(capped), None)
        edit_json(capped / "config.json", **{key: 1.0})
    edit_json(capped / "config.json", attn_logit_softcapping=50.0)
    with refused(PairError, capped, field="target"):  # no caps of logits
        find_target(bundle, str(capped), None)
    other = save_checkpoint(tmp_path / "other", seed=2, num_hidden_layers=1)
    make_tokenizer(VOCAB - 6, ["other words for other tokens"] * 2).save_pretrained(other)
    with refused(PairError, other, "--target"):
        find_target(bundle, str(other), None)
