"""What the served target writes, with its own probabilities: the text and the teacher that a draft learns from.

A verification pass computes the target's row after every token that it emits. The likeliest tokens of each row are
kept, so that training needs no pass of the target.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...calibration.measuring.journal import Journal
from ...calibration.measuring.prompts import Progress, Request
from ...errors import OutputError
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session

# Of a row: nearly all of its mass.
TOP = 64
# Of the journal, base64 and brackets included.
BYTES_PER_TOKEN = 540


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


@dataclass(frozen=True)
class Job:
    """An answer to be written."""

    request: Request
    temperature: float
    seed: int

    @property
    def key(self) -> str:
        """Of the journal's row: all that the answer depends on except the target, so that it serves other runs too."""
        asked = [self.request.tokens, self.request.max_new_tokens, self.temperature]
        return hashlib.sha256(json.dumps([*asked, self.seed if self.temperature else None]).encode()).hexdigest()[:32]


def write_answers(session: Session, jobs: Sequence[Job], journal: Journal, progress: Progress) -> list[Answer]:
    """The answers of all `jobs`, in order; those that the journal has, and equal ones, are not written again.

    An interrupted run loses only the answer in progress. Raises `OutputError`.
    """
    found = []
    for number, job in enumerate(jobs):
        progress(number, len(jobs))
        if job.key not in journal.finished:
            journal.add(job.key, _write(session, job))
        try:
            found.append(_parse(job.request, journal.finished[job.key]))
        except (KeyError, TypeError, ValueError) as error:
            raise OutputError(
                f"{journal.path}, row {job.key}: found no answer ({error}); delete the file to start over"
            ) from None
    progress(len(jobs), len(jobs))
    return [answer for answer in found if answer.tokens]


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


def up_to(jobs: Sequence[Job], tokens: float) -> Iterator[Job]:
    """The first of them whose answers are together no more than `tokens`, whatever their lengths."""
    for job in jobs:
        tokens -= job.request.max_new_tokens
        if tokens < 0:
            return
        yield job
