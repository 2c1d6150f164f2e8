from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import specexport
import torch
from click.testing import CliRunner
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.progress import Progress, silent
from specexport.calibration.measuring.prompts import Request
from specexport.cli import main
from specexport.errors import CheckpointError, OutputError, PairError, ParameterError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.tuning import train as training
from specexport.exporter.tuning import tune as tuning
from specexport.exporter.tuning.answers import TOP, Answer, Job, up_to, write_answers
from specexport.exporter.tuning.drafts import Draft, find_draft, load_draft, new_draft
from specexport.exporter.tuning.judge import by_route, judge
from specexport.exporter.tuning.options import Shape, TuneOptions
from specexport.exporter.tuning.rows import Batch, batches, logits_at
from specexport.exporter.tuning.split import Split, check_length, split
from specexport.exporter.tuning.tune import Answers, TuneReport, check_output, tune, write_all
from specexport.runtime.session import Session
from support.messages import Refused
from support.pair import Pair
from support.tiny import VOCAB, edit_json, make_tokenizer, save_checkpoint

TOKENS = 32
OPTIONS = TuneOptions(max_new_tokens=TOKENS, answers=1, epochs=30, general=0.2, rate=1.0)


class Quiet:
    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def stage(self, label: str) -> Iterator[Progress]:
        yield silent

    def note(self, message: str) -> None:
        self.notes.append(message)


def requests(count: int = 20, route: str = "code") -> list[Request]:
    rng = np.random.default_rng(len(route))
    return [Request(line, route, tuple(rng.integers(2, VOCAB, 6).tolist()), TOKENS) for line in range(count)]


def parts() -> Split:
    return split(requests(40), requests(4, "other"), requests(3, "general"))


@pytest.fixture
def session(built: Path) -> Iterator[Session]:
    with specexport.load(built) as session:
        yield session


@pytest.fixture(scope="module")
def answers(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    journal = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    with specexport.load(built) as session:
        return write_all(session, parts(), OPTIONS, journal, Quiet())


@pytest.fixture(scope="module")
def noisy(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that few steps help: the target, some noise on its weights."""
    found = load_draft(Checkpoint.find(str(pair.target)))
    torch.manual_seed(0)
    for parameter in found.model.parameters():
        if parameter.ndim == 2:
            parameter.data += 0.1 * parameter.std() * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("noisy") / "draft"
    tuning._save(found, folder)
    return folder


@pytest.fixture
def draft(noisy: Path) -> Draft:
    return load_draft(Checkpoint.find(str(noisy)))


def run(draft: Draft, answers: Answers, output: Path, force: bool = False) -> TuneReport:
    return tune(draft, answers, ["code"], output, OPTIONS, force, Quiet())


def test_answers_are_the_targets_with_its_own_rows(answers: Answers, pair: Pair) -> None:
    model = Checkpoint.find(str(pair.target)).load("fp32")
    for one in answers.judging:
        tokens = torch.tensor([[*one.prompt, *one.tokens]])
        with torch.no_grad():
            rows = torch.log_softmax(model(input_ids=tokens).logits[0, len(one.prompt) - 1 : -1], -1)
        assert one.ids.shape == (len(one.tokens), TOP)
        assert one.ids[:, 0].tolist() == list(one.tokens)  # greedy
        exact = rows.gather(1, torch.from_numpy(one.ids.astype(np.int64))).numpy()
        assert np.allclose(one.logprobs, exact, atol=0.02)


def test_the_target_as_its_own_draft_scores_one(answers: Answers, pair: Pair) -> None:
    model = Checkpoint.find(str(pair.target)).load("fp32")
    for temperature in (0.0, 1.0):
        judged = judge(model, answers.judging, temperature)
        assert [one.accepted / one.tokens for one in judged] == pytest.approx([1.0] * len(judged), abs=0.01)


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
    return Checkpoint.find(str(folder))


def test_a_draft_that_is_no_better_is_not_written(
    draft: Draft, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_step", lambda *given: None)
    report = run(draft, answers, tmp_path / "tuned")
    assert (report.draft, report.tuned.gain.value, report.trained.epoch) == (None, 0.0, 0)
    assert not list(tmp_path.iterdir())
    forced = run(draft, answers, tmp_path / "tuned", force=True)
    assert forced.draft == str(tmp_path / "tuned")
    assert not forced.helps


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


def test_epochs_that_begin_below_the_start_but_get_better_go_on(
    draft: Draft, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_step", lambda *given: None)
    monkeypatch.setattr(training, "PATIENT_STEPS", 1)
    rates = iter([0.5, 0.3, 0.4, 0.45, 0.6, 0.2, 0.2])
    monkeypatch.setattr(training, "rate", lambda judged: next(rates))
    found = training.train(draft.model, answers.training, answers.choosing, OPTIONS, silent, lambda message: None)
    assert (found.epoch, found.best) == (4, 0.6)


def test_a_new_draft_reads_its_own_head_only_where_it_guesses(answers: Answers, built: Path) -> None:
    with specexport.load(built) as session:
        model = new_draft(session.bundle, Shape(1, 32), 0).model
    batch = Batch.of(answers.judging[:3], torch.device("cpu"))
    with torch.no_grad():
        whole = model(input_ids=batch.tokens, use_cache=False).logits[batch.places]
        assert torch.allclose(logits_at(model, batch), whole, atol=1e-5)


def test_smaller_steps_are_more_of_them(answers: Answers) -> None:
    longest = max(len(one.prompt) + len(one.tokens) for one in answers.training)
    few, many = (training._Epochs(answers.training, size, OPTIONS).steps for size in (4096, longest))
    assert many > few


def test_a_killed_run_resumes(session: Session, tmp_path: Path) -> None:
    jobs = [Job(str(place), request, 0.0, 0) for place, request in enumerate(requests(3))]
    path = tmp_path / "answers.jsonl"
    with Journal.open(path, {}) as journal:
        whole = write_answers(session, jobs, journal, silent)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])  # within the second answer
    with Journal.open(path, {}) as journal:
        assert list(journal.finished) == ["0"]
        again = write_answers(session, jobs, journal, silent)
    assert [one.tokens for one in again] == [one.tokens for one in whole]
    assert all(np.array_equal(one.ids, other.ids) for one, other in zip(again, whole, strict=True))


def test_a_journal_without_answers(session: Session, tmp_path: Path, refused: Refused) -> None:
    job = Job("0", requests(1)[0], 0.0, 0)
    with Journal.open(tmp_path / "answers.jsonl", {}) as journal:
        journal.add("0", {"tokens": [1, 2], "ids": "AAAA", "logprobs": "AAAA"})
        with refused(OutputError):
            write_answers(session, [job], journal, silent)


def test_prompts_are_split_by_route_and_never_shared() -> None:
    made = split([*requests(20), *requests(20, "prose")], requests(2, "other"), [])
    assert [len(part) for part in (made.training, made.choosing, made.judging)] == [28, 4, 10]
    assert {one.route for one in made.judging} == {"code", "prose", "other"}
    assert not set(made.training) & set(made.judging)
    assert not set(made.choosing) & set(made.judging)
    jobs = made.jobs(TuneOptions(answers=3))
    assert len(jobs["training"]) == 3 * 28
    assert len({job.key for part in jobs.values() for job in part}) == 3 * 28 + 4 + 10


def test_too_few_prompts_to_judge_by(refused: Refused) -> None:
    with refused(ParameterError):
        split(requests(19), requests(50, "other"), [])


def test_answers_too_short_to_judge_by(refused: Refused) -> None:
    short = Answer("code", (1,), (2, 3), np.zeros((2, TOP), np.int32), np.zeros((2, TOP), np.float16))
    with refused(ParameterError):
        check_length([short] * 5)


def test_batches_hold_all_answers_once(answers: Answers) -> None:
    all_answers = answers.training
    order = np.random.default_rng(0).permutation(len(all_answers)).tolist()
    found = list(batches(all_answers, 64, order))
    assert sorted(id(one) for group in found for one in group) == sorted(map(id, all_answers))
    for group in found:
        batch = Batch.of(group, torch.device("cpu"))
        assert batch.tokens.numel() <= 64
        assert int(batch.places.sum()) == len(batch.ids) == sum(len(one.tokens) for one in group)
    batch = Batch.of(all_answers[:2], torch.device("cpu"))
    first = all_answers[0]
    assert batch.tokens[0][batch.places[0]].tolist() == [first.prompt[-1], *first.tokens[:-1]]


def test_general_answers_are_no_more_than_their_share(answers: Answers) -> None:
    general = [one for one in answers.training if one.route == "general"]
    assert sum(len(one.tokens) for one in general) <= 0.25 * sum(
        len(one.tokens) for one in answers.training if one.route == "code"
    )
    assert [len(one.tokens) for one in up_to(answers.judging, 2 * TOKENS - 1)] == [TOKENS]


def test_routes_are_compared_by_prompt(answers: Answers, draft: Draft) -> None:
    judged = judge(draft.model, answers.judging, 0.0)
    for one in by_route(judged, judged):
        assert (one.before, one.gain.value, one.gain.low) == (one.after, 0.0, 0.0)


def test_a_new_draft_has_the_targets_tokens(built: Path, tmp_path: Path) -> None:
    made = new_draft(specexport.bundle.Bundle.open(built), Shape(1, 32), 0)
    assert made.model.config.vocab_size == VOCAB
    tuning._save(made, tmp_path / "new")
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "new").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]  # as the umask says
    found = Checkpoint.find(str(tmp_path / "new"))
    assert found.stop_token_ids == (1,)
    assert found.tokenizer("def add").input_ids == make_tokenizer()("def add").input_ids


def test_a_new_draft_larger_than_the_target(built: Path, refused: Refused) -> None:
    with refused(ParameterError):
        new_draft(specexport.bundle.Bundle.open(built), Shape(4, 256), 0)


def test_drafts_that_cannot_be_tuned(built: Path, pair: Pair, tmp_path: Path, refused: Refused) -> None:
    bundle = specexport.bundle.Bundle.open(built)
    assert find_draft(bundle, None).digest == bundle.manifest.draft.checkpoint_sha256
    with refused(CheckpointError):
        find_draft(bundle, "somewhere/draft.Q4_0.gguf")
    quantized = Path(shutil.copytree(pair.draft, tmp_path / "quantized"))
    edit_json(quantized / "config.json", quantization_config={"quant_method": "fp8"})
    with refused(CheckpointError):
        find_draft(bundle, str(quantized))
    other = save_checkpoint(tmp_path / "other", seed=2, num_hidden_layers=1)
    make_tokenizer(VOCAB - 6, ["other words for other tokens"] * 2).save_pretrained(other)
    with refused(PairError):
        find_draft(bundle, str(other))


def test_a_draft_that_is_there_already(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "tuned").mkdir()
    with refused(OutputError):
        check_output(tmp_path / "tuned", tmp_path / "answers.jsonl", parts(), OPTIONS, 1)


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    with refused(OutputError):
        check_output(tmp_path / "tuned", tmp_path / "answers.jsonl", parts(), OPTIONS, 10**9)


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


def test_the_command_takes_a_draft_or_a_shape(built: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        main, ["tune", str(built), "--prompts", "p", "-o", str(tmp_path / "t"), "--draft", "d", "--fresh", "1x32"]
    )
    assert shown.exit_code == 1
    assert "--fresh" in shown.output
