"""`specexport tune`: answers of the served target -> train -> judge -> a checkpoint, if it is better."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .answers import Answers, Stage
from .drafts import Draft, save_draft
from .judge import Comparison, compare, judge
from .options import TuneOptions
from .train import train


@dataclass(frozen=True)
class TuneReport:
    """draft: the folder, None where nothing was written. tokens: of the answers trained on. interrupted: training ended
    early. routes: judged on held-out prompts; overall: all of them together.
    """

    draft: str | None
    source: str
    tokens: int
    interrupted: bool
    routes: tuple[Comparison, ...]
    overall: Comparison

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tune(draft: Draft, answers: Answers, output: Path, options: TuneOptions, force: bool, stage: Stage) -> TuneReport:
    """Train the draft, judge it, and write it to `output` where the gain's interval lies above 0, or by `force`.

    The folder is written completely or not at all. An interrupt while training ends it early. Raises `OutputError`.
    """
    draft.model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    before = judge(draft.model, answers.judging, options.temperature)
    with stage("train") as progress:
        rate = draft.rate if options.rate is None else options.rate
        finished = train(draft.model, answers.training, options, rate, progress)
    draft.model.to(draft.dtype).float()  # judged as it will be read from its checkpoint
    *routes, overall = compare(before, judge(draft.model, answers.judging, options.temperature))
    written = force or overall.gain.low > 0
    if written:
        save_draft(draft, output)
    return TuneReport(
        draft=str(output) if written else None,
        source=draft.source,
        tokens=sum(len(answer.tokens) for answer in answers.training),
        interrupted=not finished,
        routes=tuple(routes),
        overall=overall,
    )
