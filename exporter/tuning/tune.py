"""`specexport tune`: answers of the served target -> train -> judge -> a checkpoint, if it is better."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError

from ...atomic import temporary_folder
from ...calibration.measuring.journal import Journal
from ...calibration.measuring.prompts import Progress
from ...errors import OutputError
from ...runtime.session import Session
from .answers import BYTES_PER_TOKEN, Answer, up_to, write_answers
from .drafts import Draft, round_off, save_draft
from .judge import Comparison, by_route, compare, judge
from .options import Split, TuneOptions, check_length
from .train import Trained, train

ALL = "all"
FOREIGN = "has answers of another target, or of an earlier version; give another --journal, or delete the file"


class Display(Protocol):
    def stage(self, label: str) -> AbstractContextManager[Progress]:
        """Shows the progress of a stage while the context lasts."""
        ...

    def note(self, message: str) -> None:
        """Print a line that stays."""
        ...


@dataclass(frozen=True)
class TuneReport:
    """draft: the folder, None where nothing was written. trained: tokens of answers. routes: judged on prompts that
    nothing was learned from; tuned: all of the tuned ones together.
    """

    draft: str | None
    source: str
    tokens: int
    trained: Trained
    tuned: Comparison
    routes: tuple[Comparison, ...]

    @property
    def helps(self) -> bool:
        return self.tuned.gain.low > 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Answers:
    """routes: those that the draft is tuned for."""

    training: list[Answer]
    choosing: list[Answer]
    judging: list[Answer]
    routes: Sequence[str]


def require_room(folder: Path, needed: float) -> None:
    """needed: bytes. Raises `OutputError`, also where nothing can be written."""
    place = folder
    while not place.exists():
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise OutputError(f"{place} is not a writable folder; choose another path")
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OutputError(
            f"the tuning needs {needed / 1e6:.0f} MB under {folder}, but only {free / 1e6:.0f} MB are free; "
            "free some, or give fewer prompts or --answers"
        )


def write_all(session: Session, split: Split, options: TuneOptions, journal: Path, display: Display) -> Answers:
    """Every answer that is needed, in a journal that other runs with the same target reuse.

    Raises `ParameterError`, and `OutputError`, also for a journal of another target.
    """
    jobs = split.jobs(options)
    with Journal.open(journal, _header(session), FOREIGN) as kept:
        longest = sum(job.request.max_new_tokens for job in jobs["training"])
        jobs["general"] = list(up_to(jobs["general"], options.general_share(longest)))
        missing = {job.key: job for part in jobs.values() for job in part if job.key not in kept.finished}
        tokens = sum(job.request.max_new_tokens for job in missing.values())
        require_room(journal.parent, BYTES_PER_TOKEN * tokens)
        with display.stage("held-out answers") as progress:
            judging = write_answers(session, jobs["judging"], kept, progress)
            check_length([answer for answer in judging if answer.route in split.routes])
            choosing = write_answers(session, jobs["choosing"], kept, progress)
        with display.stage("answers") as progress:
            training = write_answers(session, jobs["training"], kept, progress)
        with display.stage("general answers") as progress:
            most = options.general_share(sum(len(answer.tokens) for answer in training))
            general = write_answers(session, list(up_to(jobs["general"], most)), kept, progress)
    return Answers(training + general, choosing, judging, split.routes)


def tune(
    draft: Draft, answers: Answers, output: Path, options: TuneOptions, force: bool, display: Display
) -> TuneReport:
    """Train the draft, judge it, and write it to `output` where the gain's interval lies above 0, or by `force`.

    The folder is written completely or not at all. An interrupt while training ends it early.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draft.model.to(device)
    before = judge(draft.model, answers.judging, options.temperature)
    with display.stage("train") as progress:
        trained = train(
            draft.model,
            answers.training,
            answers.choosing,
            options if options.rate is not None else replace(options, rate=draft.rate),
            progress,
            display.note,
        )
    round_off(draft)
    after = judge(draft.model, answers.judging, options.temperature)
    places = [place for place, one in enumerate(before) if one.route in answers.routes]
    tuned = compare([before[place] for place in places], [after[place] for place in places], ALL)
    report = TuneReport(
        draft=str(output),
        source=draft.source,
        tokens=sum(len(answer.tokens) for answer in answers.training),
        trained=trained,
        tuned=tuned,
        routes=tuple(by_route(before, after)),
    )
    if not (report.helps or force):
        return replace(report, draft=None)
    draft.model.to("cpu")
    _save(draft, output)
    return report


def _save(draft: Draft, output: Path) -> None:
    try:
        with temporary_folder(output) as folder:
            save_draft(draft, folder)
            if os.path.lexists(output):
                raise OutputError(f"{output} was created in the meantime; nothing was kept of the draft")
            folder.rename(output)
    except (OSError, SafetensorError) as error:  # the latter where the weights do not fit on the disk
        reason = getattr(error, "strerror", None) or error
        raise OutputError(
            f"{output} cannot be written: {reason}; the answers are kept, run the same command again to resume"
        ) from None


def _header(session: Session) -> dict[str, object]:
    """What must be equal for answers to be used again; the rows' keys say the rest."""
    manifest = session.bundle.manifest
    files = (manifest.target.weights, *manifest.target.graphs.values())
    return {
        "tune": 2,
        "target": hashlib.sha256("".join(manifest.files[name].sha256 for name in files).encode()).hexdigest(),
        "ends": [sorted(manifest.text.stop_token_ids), manifest.longest],
    }
