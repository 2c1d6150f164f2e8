from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import specexport
import torch
from click.testing import CliRunner
from specexport.calibration.measuring.prompts import silent
from specexport.cli import main
from specexport.errors import CheckpointError, PairError, ParameterError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.tuning import train as training
from specexport.exporter.tuning import tune as tuning
from specexport.exporter.tuning.answers import TOP
from specexport.exporter.tuning.drafts import Draft, find_draft, load_draft, new_draft
from specexport.exporter.tuning.judge import Judged, compare, judge
from specexport.exporter.tuning.options import Shape
from specexport.exporter.tuning.tune import Answers, TuneReport, tune, write_all
from support.pair import Pair
from support.refusals import refused
from support.tiny import VOCAB, edit_json, make_tokenizer, save_checkpoint
from support.tuning import OPTIONS, TOKENS, Quiet, parts, requests


@pytest.fixture(scope="module")
def answers(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    journal = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    with specexport.load(built) as session:
        return write_all(session, parts(), OPTIONS, journal, Quiet())


@pytest.fixture(scope="module")
def noisy(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that few steps help: the target, some noise on its weights."""
    found = load_draft(find_checkpoint(str(pair.target)))
    torch.manual_seed(0)
    for parameter in found.model.parameters():
        if parameter.ndim == 2:
            parameter.data += 0.1 * parameter.std() * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("noisy") / "draft"
    tuning._save(found, folder)
    return folder


@pytest.fixture
def draft(noisy: Path) -> Draft:
    return load_draft(find_checkpoint(str(noisy)))


def run(draft: Draft, answers: Answers, output: Path, force: bool = False) -> TuneReport:
    return tune(draft, answers, output, OPTIONS, force, Quiet())


def test_answers_are_the_targets_with_its_own_rows(answers: Answers, pair: Pair) -> None:
    model = find_checkpoint(str(pair.target)).load("fp32")
    for one in answers.judging:
        tokens = torch.tensor([[*one.prompt, *one.tokens]])
        with torch.no_grad():
            rows = torch.log_softmax(model(input_ids=tokens).logits[0, len(one.prompt) - 1 : -1], -1)
        assert one.ids.shape == (len(one.tokens), TOP)
        assert one.ids[:, 0].tolist() == list(one.tokens)  # greedy
        exact = rows.gather(1, torch.from_numpy(one.ids.astype(np.int64))).numpy()
        assert np.allclose(one.logprobs, exact, atol=0.02)


def test_a_draft_is_tuned_and_an_ordinary_checkpoint(draft: Draft, answers: Answers, tmp_path: Path) -> None:
    report = run(draft, answers, tmp_path / "tuned")
    assert report.helps
    assert report.tuned.after > report.tuned.before
    assert [one.route for one in report.routes] == ["code", "other"]
    assert report.tuned.prompts == report.routes[0].prompts == 8
    found = load_draft(find_draft_at(tmp_path / "tuned"))
    after = judge(found.model, answers.judging, 0.0)
    assert sum(one.accepted for one in after if one.route == "code") == pytest.approx(
        report.tuned.after * report.tuned.tokens
    )
    assert not list(tmp_path.glob(".*"))


def find_draft_at(folder: Path) -> Checkpoint:
    return find_checkpoint(str(folder))


def test_an_interrupt_keeps_the_best_so_far(
    draft: Draft, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = training._step, []

    def interrupted(*given: object) -> None:
        calls.append(1)
        if len(calls) == 13:
            raise KeyboardInterrupt
        step(*given)

    monkeypatch.setattr(training, "_step", interrupted)
    report = run(draft, answers, tmp_path / "tuned", force=True)
    assert report.trained.interrupted
    assert 0 < report.trained.epoch <= 12
    assert report.trained.best > report.trained.start
    assert (tmp_path / "tuned" / "config.json").is_file()


def test_a_worse_state_gives_way_to_the_best(draft: Draft, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def ruin(model: torch.nn.Module, *_: object) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()

    before = {name: value.clone() for name, value in draft.model.state_dict().items()}
    monkeypatch.setattr(training, "_step", ruin)
    monkeypatch.setattr(training, "PATIENT_STEPS", 1)
    rates = iter([0.5, 0.4, 0.3, 0.2])
    monkeypatch.setattr(training, "rate", lambda judged: next(rates))
    found = training.train(draft.model, answers.training, answers.choosing, OPTIONS, silent, lambda message: None)
    assert (found.epoch, found.best) == (0, 0.5)
    assert all(torch.equal(value, before[name]) for name, value in draft.model.state_dict().items())


def test_a_new_draft_has_the_targets_tokens(built: Path, tmp_path: Path) -> None:
    made = new_draft(specexport.bundle.Bundle.open(built), Shape(1, 32), 0)
    assert made.model.config.vocab_size == VOCAB
    tuning._save(made, tmp_path / "new")
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "new").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]  # as the umask says
    found = find_checkpoint(str(tmp_path / "new"))
    assert found.stop_token_ids == (1,)
    assert found.tokenizer("def add").input_ids == make_tokenizer()("def add").input_ids


def test_drafts_that_cannot_be_tuned(built: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = specexport.bundle.Bundle.open(built)
    monkeypatch.chdir(pair.draft.parent)
    assert find_draft(bundle, None).digest == bundle.manifest.drafts[0].model.checkpoint_sha256
    with refused(CheckpointError, "--draft"):
        find_draft(bundle, "somewhere/draft.Q4_0.gguf")
    quantized = Path(shutil.copytree(pair.draft, tmp_path / "quantized"))
    edit_json(quantized / "config.json", quantization_config={"quant_method": "fp8"})
    with refused(CheckpointError, "True"):
        find_draft(bundle, str(quantized))
    other = save_checkpoint(tmp_path / "other", seed=2, num_hidden_layers=1)
    make_tokenizer(VOCAB - 6, ["other words for other tokens"] * 2).save_pretrained(other)
    with refused(PairError, "--fresh"):
        find_draft(bundle, str(other))
    monkeypatch.chdir(tmp_path)  # the bundle knows the draft's name, not where it is
    with refused(ParameterError, "folder", field="draft"):
        find_draft(bundle, None)


def test_the_command(built: Path, noisy: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"route": "code", "prompt": list(request.tokens)} for request in requests(40)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    given = [str(built), "--prompts", str(prompts), "-o", str(tmp_path / "tuned"), "--draft", str(noisy)]
    few = ["--max-new-tokens", str(TOKENS), "--answers", "1", "--epochs", "20", "--rate", "1"]
    shown = CliRunner().invoke(main, ["tune", *given, *few, "--json"])
    assert shown.exit_code == 0, shown.output
    report = json.loads(shown.stdout)
    assert report["draft"] == str(tmp_path / "tuned")
    assert report["tuned"]["gain"]["low"] > 0
    assert (tmp_path / "tuned" / "model.safetensors").is_file()
    again = CliRunner().invoke(main, ["tune", *given, *few])
    assert again.exit_code == 1
    assert "exists" in again.output


@pytest.mark.parametrize("before_training", [True, False])
def test_interrupted_behind_the_answers(
    before_training: bool, built: Path, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are kept, and the command says so and that it was interrupted."""

    def interrupted(*given: object) -> TuneReport:
        if before_training:
            raise KeyboardInterrupt
        row = compare([Judged("code", 2, 1.0)] * 2, [Judged("code", 2, 1.0)] * 2, "code")
        return TuneReport(None, "a draft", 1, training.Trained(0, 0.5, 0.5, True), row, (row,))

    monkeypatch.setattr(tuning, "write_all", lambda *given: None)
    monkeypatch.setattr(tuning, "tune", interrupted)
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"route": "code", "prompt": list(request.tokens)} for request in requests(40)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    given = [str(built), "--prompts", str(prompts), "-o", str(tmp_path / "tuned"), "--draft", str(noisy)]
    shown = CliRunner().invoke(main, ["tune", *given, "--max-new-tokens", str(TOKENS)])
    assert shown.exit_code == 130, shown.output
    assert "interrupted" in shown.stderr
    assert "tuned.answers.jsonl" in shown.stderr
    assert "--force" not in shown.stderr
