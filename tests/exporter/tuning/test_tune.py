from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from specexport.bundle import Bundle
from specexport.cli import main
from specexport.errors import CheckpointError, PairError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.tuning import train as training
from specexport.exporter.tuning import tune as tuning
from specexport.exporter.tuning.answers import TOP, Answers
from specexport.exporter.tuning.drafts import Draft, load_draft, save_draft
from specexport.exporter.tuning.train import Judged, compare, judge
from specexport.exporter.tuning.tune import TuneReport, tune
from support.block_drafts import save_block
from support.hidden_drafts import save_speculators
from support.pair import Pair
from support.refusals import refused
from support.tiny import VOCAB, edit_json, make_tokenizer, save_checkpoint
from support.tuning import OPTIONS, TOKENS, quiet, requests


@pytest.fixture(scope="module")
def noisy(pair: Pair, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that few steps help: the target, some noise on its weights."""
    made = load_draft(Bundle.open(built), str(pair.target))
    torch.manual_seed(0)
    for parameter in made.model.parameters():
        if parameter.ndim == 2:
            parameter.data += 0.1 * parameter.std() * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("noisy") / "draft"
    save_draft(made, folder)
    return folder


@pytest.fixture
def draft(noisy: Path, built: Path) -> Draft:
    return replace(load_draft(Bundle.open(built), str(noisy)), rate=1.0)  # few answers are to teach it something


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


@pytest.mark.slow
def test_a_draft_is_tuned_and_an_ordinary_checkpoint(
    draft: Draft, answers: Answers, built: Path, tmp_path: Path
) -> None:
    report = tune(draft, answers, tmp_path / "tuned", OPTIONS, False, quiet)
    assert report.draft == str(tmp_path / "tuned")
    assert report.overall.after > report.overall.before
    assert [(one.route, one.prompts) for one in report.routes] == [("code", 8), ("other", 2)]
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "tuned").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]  # as the umask says
    saved = load_draft(Bundle.open(built), report.draft)
    after = judge(saved.model, answers.judging, 0.0)
    assert sum(one.accepted for one in after) == pytest.approx(report.overall.after * report.overall.tokens)
    assert not list(tmp_path.glob(".*"))


def test_an_interrupt_ends_the_training_and_the_draft_is_judged(
    draft: Draft, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = training._backward, []

    def interrupted(*given: object) -> None:
        calls.append(1)
        if len(calls) == 13:
            raise KeyboardInterrupt
        step(*given)

    monkeypatch.setattr(training, "_backward", interrupted)
    report = tune(draft, answers, tmp_path / "tuned", OPTIONS, True, quiet)
    assert report.interrupted
    assert report.overall.after != report.overall.before
    assert (tmp_path / "tuned" / "config.json").is_file()


def test_a_draft_that_is_no_better_is_not_written(
    draft: Draft, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_backward", lambda *given: None)
    report = tune(draft, answers, tmp_path / "tuned", OPTIONS, False, quiet)
    assert report.draft is None
    assert report.overall.gain.value == 0
    assert not list(tmp_path.iterdir())


def test_an_epoch_has_every_answer_once(answers: Answers) -> None:
    steps = training.epoch(answers.training, 200, random.Random(0))
    learned = [one for step in steps for batch in step for one in batch]
    assert sorted(map(id, learned)) == sorted(map(id, answers.training))
    assert all(sum(len(one) for batch in step for one in batch) >= 200 for step in steps[:-1])
    assert all(len(batch) * max(map(len, batch)) <= 200 for step in steps for batch in step)


def test_drafts_that_cannot_be_tuned(built: Path, pair: Pair, tmp_path: Path) -> None:
    bundle = Bundle.open(built)
    with refused(CheckpointError, "--draft"):
        load_draft(bundle, "somewhere/draft.Q4_0.gguf")
    quantized = Path(shutil.copytree(pair.draft, tmp_path / "quantized"))
    edit_json(quantized / "config.json", quantization_config={"quant_method": "gptq"})
    with refused(CheckpointError, "quantized"):
        load_draft(bundle, str(quantized))
    other = save_checkpoint(tmp_path / "other", seed=2, num_hidden_layers=1)
    make_tokenizer(VOCAB - 6, ["other words for other tokens"] * 2).save_pretrained(other)
    with refused(PairError, "vocabulary"):
        load_draft(bundle, str(other))
    with refused(UnsupportedModelError, "mtp", field="draft"):
        load_draft(bundle, "mtp")
    with refused(UnsupportedModelError, "--kind eagle3", field="draft"):
        load_draft(bundle, str(save_speculators(tmp_path / "head")))
    with refused(UnsupportedModelError, "dspark", field="draft"):
        load_draft(bundle, str(save_block(tmp_path / "blocks", "dspark")))


@pytest.fixture
def arguments(built: Path, noisy: Path, tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"route": "code", "prompt": list(request.tokens)} for request in requests(40)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    given = ["tune", str(built), "--prompts", str(prompts), "-o", str(tmp_path / "tuned"), "--draft", str(noisy)]
    return [*given, "--max-new-tokens", str(TOKENS), "--answers", "1", "--epochs", "40"]


@pytest.mark.slow
def test_the_command(arguments: list[str], tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    report = json.loads(shown.stdout)
    assert report["draft"] == str(tmp_path / "tuned")
    assert report["overall"]["gain"]["low"] > 0
    assert (tmp_path / "tuned" / "model.safetensors").is_file()
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "exists" in again.output


@pytest.mark.slow
def test_the_command_makes_a_head(arguments: list[str], pair: Pair, tmp_path: Path) -> None:
    at = arguments.index("--draft")
    given = [*arguments[:at], *arguments[at + 2 :], "--kind", "eagle3", "--target", str(pair.target), "--force"]
    shown = CliRunner().invoke(main, [*given, "--epochs", "1", "--vocabulary", "100"])
    assert shown.exit_code == 0, shown.output
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["draft_vocab_size"] == 100


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--kind", "eagle3"], "--target"),
        ([], "--draft"),
        (["--draft", "one", "--target", "other"], "--kind"),
        (["--draft", "one", "--vocabulary", "32768"], "--vocabulary"),
        (["--kind", "eagle3", "--target", "other", "--draft", "one", "--inner", "64"], "--inner"),
    ],
)
def test_what_a_kind_needs(given: list[str], named: str, built: Path, arguments: list[str]) -> None:
    shown = CliRunner().invoke(main, [*arguments[: arguments.index("--draft")], *given])
    assert shown.exit_code == 2
    assert named in shown.output.splitlines()[-1]


@pytest.mark.parametrize("before_training", [True, False])
def test_interrupted_after_the_answers(
    before_training: bool, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are kept, and the command says so and that it was interrupted."""

    def interrupted(*given: object) -> TuneReport:
        if before_training:
            raise KeyboardInterrupt
        row = [Judged("code", 2, 1.0)] * 2
        *routes, overall = compare(row, row)
        return TuneReport(None, "a draft", 1, True, tuple(routes), overall)

    monkeypatch.setattr("specexport.exporter.tuning.answers.write_all", lambda *given: None)
    monkeypatch.setattr(tuning, "tune", interrupted)
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 130, shown.output
    assert "interrupted" in shown.output
    kept = tmp_path / "tuned.answers.jsonl"
    assert (str(kept) in shown.stderr) is not before_training  # there is no such file yet
    assert "resuming" not in shown.stderr
    kept.touch()
    again = CliRunner().invoke(main, arguments).stderr
    assert f"resuming with the answers in {kept}\n" in again
    assert f"the answers are kept in {kept}" in again


def test_an_answer_longer_than_a_batch_has_its_own() -> None:
    assert training.in_batches([range(7), range(5), range(2), range(2)], 4) == [[range(2)] * 2, [range(5)], [range(7)]]
    assert training.in_batches([range(7), range(5)], 4) == [[range(5)], [range(7)]]
