from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import specexport
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.prompts import silent
from specexport.errors import ParameterError
from specexport.exporter.tuning import answers as answering
from specexport.exporter.tuning import options as tuning_options
from specexport.exporter.tuning.answers import Job, write_all, write_answers
from specexport.exporter.tuning.options import TuneOptions, split
from specexport.runtime.session import Session
from support.refusals import refused
from support.tuning import OPTIONS, TOKENS, quiet, requests


@pytest.fixture
def session(built: Path) -> Iterator[Session]:
    with specexport.load(built) as session:
        yield session


def test_prompts_are_split_by_route_and_each_counts_once() -> None:
    again = [replace(request, line=request.line + 100, max_new_tokens=5) for request in requests(20)]
    training, judging = split([*requests(20), *again, *requests(20, "prose")])
    assert Counter(one.route for one in judging) == {"code": 4, "prose": 4}
    assert len(training) == 32
    assert not {one.tokens for one in training} & {one.tokens for one in judging}
    with refused(ParameterError, "19", field="prompts"):
        split([*requests(19), *requests(19)])
    brief = [replace(request, max_new_tokens=49) for request in requests(20)]
    with refused(ParameterError, 4 * 49, 200, field="prompts"):
        split(brief)
    assert len(split([replace(request, max_new_tokens=50) for request in brief])[1]) == 4


def test_an_answer_is_known_by_all_that_it_depends_on() -> None:
    request = requests(1)[0]
    greedy, sampled = Job(request, 0.0, 0), Job(request, 1.0, 0)
    elsewhere = replace(request, line=7, route="prose")
    assert greedy.key == Job(request, 0.0, 1).key == Job(elsewhere, 0.0, 0).key
    longer, others = replace(request, max_new_tokens=TOKENS + 1), replace(request, tokens=request.tokens[1:])
    different = [greedy, sampled, Job(request, 1.0, 1), Job(request, 0.5, 0), Job(longer, 0.0, 0), Job(others, 0.0, 0)]
    assert len({job.key for job in different}) == len(different)
    assert len({Job(request, 1.0, 0).seed, Job(request, 1.0, 1).seed, Job(others, 1.0, 0).seed}) == 3


def test_a_killed_run_resumes(session: Session, tmp_path: Path) -> None:
    jobs = [Job(request, 0.0, 0) for request in requests(3)]
    path = tmp_path / "answers.jsonl"
    with Journal.open(path, {}) as journal:
        whole = write_answers(session, jobs, journal, silent)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])  # within the second answer
    with Journal.open(path, {}) as journal:
        assert list(journal.finished) == [jobs[0].key]
        shown: list[tuple[int, int]] = []
        again = write_answers(session, jobs, journal, lambda *progress: shown.append(progress))
    assert shown == [(1, 3), (2, 3), (3, 3)]  # what is kept tells nothing about the speed
    assert [one.tokens for one in again] == [one.tokens for one in whole]
    assert all(np.array_equal(one.ids, other.ids) for one, other in zip(again, whole, strict=True))


# What the command's own messages and help advise: more prompts, more answers, other shares.
def test_answers_serve_other_runs_with_the_same_target(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Job] = []
    write = answering._write
    monkeypatch.setattr(answering, "_write", lambda session, job: written.append(job) or write(session, job))
    monkeypatch.setattr(answering, "MIN_TOKENS", 1)
    monkeypatch.setattr(tuning_options, "MIN_TOKENS", 1)
    brief = [replace(request, max_new_tokens=2) for request in requests(25)]
    journal, options = tmp_path / "answers.jsonl", replace(OPTIONS, max_new_tokens=2, general=0.0, answers=3)
    for prompts, chosen, expected in (
        (brief[:20], replace(options, answers=2), 20),  # the second greedy answer is the first
        (brief[:20], options, 16),  # the third is drawn at 1
        (brief, options, 5 + 4),
        (brief, options, 0),
    ):
        written.clear()
        write_all(session, *split(prompts), chosen, journal, quiet)
        assert len(written) == expected


def test_the_share_of_general_answers(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MIN_TOKENS", 1)
    prompts = requests(20)
    answers = write_all(session, prompts[:16], prompts[16:], OPTIONS, tmp_path / "answers.jsonl", quiet)
    tokens = Counter[str]()
    for one in answers.training:
        tokens[one.route] += len(one.tokens)
    assert 0 < tokens["general"] <= OPTIONS.general * tokens.total()


def test_answers_too_short_to_judge_by(session: Session, tmp_path: Path) -> None:
    brief = [replace(request, max_new_tokens=2) for request in requests(20)]
    with refused(ParameterError, "200", field="prompts"):
        write_all(session, brief[:16], brief[16:], OPTIONS, tmp_path / "answers.jsonl", quiet)


@pytest.mark.parametrize(
    "options",
    [
        dict(answers=0),
        dict(epochs=-1),
        dict(max_new_tokens=0),
        dict(vocabulary=0),
        dict(inner=0),
        dict(temperature=-0.1),
        dict(temperature=float("nan")),
        dict(general=1.0),
    ],
)
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with refused(ParameterError, field=next(iter(options))):
        TuneOptions(**options)  # type: ignore[arg-type]
