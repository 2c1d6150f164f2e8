"""What the served target writes, with its own probabilities: the text and the teacher that a draft learns from.

A verification pass computes the target's row after every token that it emits. The likeliest tokens of each row are
kept, so that training needs no pass of the target.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...calibration.measuring.journal import Journal
from ...calibration.measuring.prompts import Progress, Request
from ...errors import OutputError, ParameterError
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from ..weights.texts import read_texts
from .options import MIN_TOKENS, TuneOptions

# Likeliest tokens kept of each row, which have nearly all of its mass.
TOP = 64
# Tokens of each built-in text that are its prompt.
GENERAL_PROMPT = 64
FOREIGN = "has answers of another target, or of an earlier version; give another --journal, or delete the file"
# Shows a stage, by its label, while the context lasts.
Stage = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Answer:
    """ids `[n, TOP] int32`, logprobs `[n, TOP] float16`: of the target's row that each token was taken from, at
    temperature 1, the likeliest first.
    """

    route: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.tokens)


@dataclass(frozen=True)
class Answers:
    training: list[Answer]
    judging: list[Answer]


@dataclass(frozen=True)
class Job:
    """An answer to be written; `number` counts those to the same prompt, from 0."""

    request: Request
    temperature: float
    number: int

    @property
    def key(self) -> str:
        """Of the journal's row: all that the answer depends on except the target, so that it serves other runs too."""
        facts = [self.request.tokens, self.request.max_new_tokens, self.temperature]
        return hashlib.sha256(json.dumps([*facts, self.number if self.temperature else None]).encode()).hexdigest()[:32]

    @property
    def seed(self) -> int:
        """The same whatever the other prompts are."""
        return int(hashlib.sha256(json.dumps([self.number, self.request.tokens]).encode()).hexdigest()[:7], 16)


def write_all(
    session: Session,
    training: Sequence[Request],
    judging: Sequence[Request],
    options: TuneOptions,
    journal: Path,
    stage: Stage,
) -> Answers:
    """Every answer that is needed, in a journal that other runs with the same target reuse.

    Raises `ParameterError` for answers too short to judge by, and `OutputError`, also for a journal of another target.
    """
    with Journal.open(journal, journal_header(session), FOREIGN) as kept:

        def written(label: str, jobs: Sequence[Job]) -> list[Answer]:
            with stage(label) as progress:
                return write_answers(session, jobs, kept, progress)

        held_out = written("held-out answers", [Job(request, options.temperature, 0) for request in judging])
        tokens = sum(len(answer.tokens) for answer in held_out)
        if tokens < MIN_TOKENS:
            raise ParameterError(
                f"the target's answers to {len(held_out)} held-out prompts have {tokens} tokens, expected {MIN_TOKENS};"
                " give more prompts or ones with longer answers, or raise --max-new-tokens; the answers are kept",
                "prompts",
            )
        answers = written("answers", _jobs(training, options))
        budget = sum(len(answer.tokens) for answer in answers) * options.general / (1 - options.general)
        general = _jobs(_general(session, options.max_new_tokens) if budget else (), options)
        if some := list(_up_to(general, budget)):
            answers += written("general answers", some)
    return Answers(answers, held_out)


def write_answers(session: Session, jobs: Sequence[Job], journal: Journal, progress: Progress) -> list[Answer]:
    """The answers of all `jobs`, in order; those that the journal has, and equal ones, are not written again.

    An interrupted run loses only the answer in progress. Raises `OutputError`.
    """
    answers, done, total = [], set[str](), len({job.key for job in jobs})
    for job in jobs:
        if job.key not in journal.finished:
            progress(len(done), total)
            journal.add(job.key, _write(session, job))
        done.add(job.key)
        try:
            answers.append(_parse(job.request, journal.finished[job.key]))
        except (KeyError, TypeError, ValueError) as error:
            raise OutputError(
                f"{journal.path}, row {job.key}: no answer ({error}); delete the file to start over"
            ) from None
    progress(total, total)
    return [answer for answer in answers if answer.tokens]


def _jobs(requests: Sequence[Request], options: TuneOptions) -> list[Job]:
    return [
        Job(request, 1.0 if number % 3 == 2 else options.temperature, number)
        for number in range(options.answers)
        for request in requests
    ]


def _general(session: Session, max_new_tokens: int) -> list[Request]:
    """The first tokens of the built-in texts as prompts."""
    length = min(GENERAL_PROMPT, session.capacity // 2)
    starts = [session.tokenizer.encode(text).ids[:length] for text in read_texts(None)]
    most = min(max_new_tokens, session.capacity - length)
    return [Request(line, "general", tuple(start), most) for line, start in enumerate(starts) if start]


def _up_to(jobs: Sequence[Job], tokens: float) -> Iterator[Job]:
    """The first of them whose answers are together no more than `tokens`, whatever their lengths."""
    for job in jobs:
        tokens -= job.request.max_new_tokens
        if tokens < 0:
            return
        yield job


def _write(session: Session, job: Job) -> dict[str, Any]:
    top = min(TOP, session.bundle.manifest.target.vocab_size)
    params = SamplingParameters(
        temperature=job.temperature, seed=job.seed, max_new_tokens=job.request.max_new_tokens, logprobs=top
    )
    tokens: list[int] = []
    rows = []
    with closing(session.stream(job.request.tokens, params)) as stream:
        for chunk in stream:
            tokens += chunk.tokens
            rows += [row.likeliest for row in chunk.logprobs]
    pairs = np.array(rows, np.float64).reshape(len(rows), -1, 2)
    return {
        "tokens": tokens,
        "ids": _packed(pairs[..., 0].astype("<i4")),
        "logprobs": _packed(pairs[..., 1].astype("<f2")),
    }


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _parse(request: Request, row: dict[str, Any]) -> Answer:
    """Raises `KeyError`, `TypeError` or `ValueError` for an invalid answer."""
    tokens = tuple(int(token) for token in row["tokens"])
    ids = np.frombuffer(base64.b64decode(row["ids"], validate=True), "<i4").astype(np.int32)
    logprobs = np.frombuffer(base64.b64decode(row["logprobs"], validate=True), "<f2").astype(np.float16)
    shape = (len(tokens), ids.size // max(len(tokens), 1))
    return Answer(request.route, request.tokens, tokens, ids.reshape(shape), logprobs.reshape(shape))


def journal_header(session: Session) -> dict[str, object]:
    """What must be equal for answers to be used again; the rows' keys say the rest."""
    manifest = session.bundle.manifest
    files = (manifest.target.weights, *manifest.target.graphs.values())
    return {
        "tune": 2,
        "target": hashlib.sha256("".join(manifest.files[name].sha256 for name in files).encode()).hexdigest(),
        "ends": [sorted(manifest.text.stop_token_ids), manifest.longest],
    }
