from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import specexport
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.prompts import silent
from specexport.errors import OutputError
from specexport.exporter.tuning import answers as answering
from specexport.exporter.tuning.answers import BYTES_PER_TOKEN, Job, write_answers
from specexport.exporter.tuning.options import split
from specexport.exporter.tuning.tune import write_all
from specexport.runtime.session import Session
from support.tuning import OPTIONS, TOKENS, Quiet, requests


@pytest.fixture
def session(built: Path) -> Iterator[Session]:
    with specexport.load(built) as session:
        yield session


def test_an_answer_is_known_by_all_that_it_depends_on() -> None:
    request = requests(1)[0]
    greedy, sampled = Job(request, 0.0, 0), Job(request, 1.0, 0)
    elsewhere = replace(request, line=7, route="prose")
    assert greedy.key == Job(request, 0.0, 1).key == Job(elsewhere, 0.0, 0).key
    longer, others = replace(request, max_new_tokens=TOKENS + 1), replace(request, tokens=request.tokens[1:])
    different = [greedy, sampled, Job(request, 1.0, 1), Job(request, 0.5, 0), Job(longer, 0.0, 0), Job(others, 0.0, 0)]
    assert len({job.key for job in different}) == len(different)


@pytest.fixture
def short_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.exporter.tuning.options.MIN_TOKENS", 1)


def test_a_killed_run_resumes(session: Session, tmp_path: Path) -> None:
    jobs = [Job(request, 0.0, 0) for request in requests(3)]
    path = tmp_path / "answers.jsonl"
    with Journal.open(path, {}) as journal:
        whole = write_answers(session, jobs, journal, silent)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])  # within the second answer
    with Journal.open(path, {}) as journal:
        assert list(journal.finished) == [jobs[0].key]
        again = write_answers(session, jobs, journal, silent)
    assert [one.tokens for one in again] == [one.tokens for one in whole]
    assert all(np.array_equal(one.ids, other.ids) for one, other in zip(again, whole, strict=True))


# What the command's own messages and help advise: more prompts, prompts to judge, other shares and other seeds.
@pytest.mark.usefixtures("short_is_enough")
def test_answers_serve_other_runs_with_the_same_target(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Job] = []
    write = answering._write
    monkeypatch.setattr(answering, "_write", lambda session, job: written.append(job) or write(session, job))
    brief = [replace(request, max_new_tokens=2) for request in requests(30)]
    journal, options = tmp_path / "answers.jsonl", replace(OPTIONS, general=0.2, answers=3)
    for given, others, chosen, expected in (
        (brief[:20], [], replace(OPTIONS, answers=2), 20),  # the second greedy answer is the first
        (brief[:20], [], options, 14),  # the third is drawn at 1
        (brief, [], options, 10 + 7),
        (brief, [replace(request, max_new_tokens=2) for request in requests(4, "other")], options, 4),
        (brief, [], replace(options, general=0.0), 0),
        (brief, [], replace(OPTIONS, answers=2, seed=1), 0),
    ):
        written.clear()
        write_all(session, split(given, others, []), chosen, journal, Quiet())
        assert len(written) == expected


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def free(left: int) -> None:
        usage = shutil._ntuple_diskusage(10**9, 10**9 - left, left)  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)

    return free


@pytest.mark.usefixtures("short_is_enough")
def test_room_is_asked_for_answers_that_are_not_there(
    session: Session, tmp_path: Path, free: Callable[[int], None]
) -> None:
    made = split([replace(request, max_new_tokens=2) for request in requests(30)], [], [])
    first, journal = replace(made, training=made.training[:-1]), tmp_path / "answers.jsonl"
    for given, answers_left in ((first, 29), (made, 1)):
        free(BYTES_PER_TOKEN * 2 * answers_left - 1)
        with pytest.raises(OutputError, match="MB are free"):
            write_all(session, given, OPTIONS, journal, Quiet())
        free(BYTES_PER_TOKEN * 2 * answers_left)
        write_all(session, given, OPTIONS, journal, Quiet())
