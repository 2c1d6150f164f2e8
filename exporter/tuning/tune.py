"""`specexport tune`: answers of the served target -> train -> judge -> a checkpoint, if it is better."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from .answers import Answers, Stage
from .chain import judge_head, train_head
from .drafts import Draft, save_draft
from .heads import Head, read_states, save_head
from .options import TuneOptions
from .train import ALL, Comparison, Judged, compare, judge, train


@dataclass(frozen=True)
class TuneReport:
    """draft: the folder, None where nothing was written. tokens: of the answers trained on. interrupted: training ended
    early. routes: judged on held-out prompts; overall: all of them together, a head's first step. Its other steps are
    among `routes`.
    """

    draft: str | None
    source: str
    tokens: int
    interrupted: bool
    routes: tuple[Comparison, ...]
    overall: Comparison


def tune(
    draft: Draft | Head, answers: Answers, output: Path, options: TuneOptions, force: bool, stage: Stage
) -> TuneReport:
    """Train the draft, judge it, and write it to `output` where the gain's interval lies above 0, or by `force`.

    The folder is written completely or not at all. An interrupt while training ends it early. Raises `OutputError`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draft.model.to(device)
    before: list[list[Judged]]  # by step, as `after`
    if isinstance(draft, Head):
        draft.target.to(device)
        every, count = [*answers.training, *answers.judging], len(answers.training)
        with stage("hidden states") as progress:
            lessons = read_states(draft, every, output.parent, progress)
        before = judge_head(draft, lessons[count:])
        with stage("train") as progress:
            finished = train_head(draft, lessons[:count], options, progress)
        draft.model.half().float()  # judged as it will be read from its checkpoint
        after = judge_head(draft, lessons[count:])
    else:
        before = [judge(draft.model, answers.judging, options.temperature)]
        with stage("train") as progress:
            finished = train(draft.model, answers.training, options, draft.rate, progress)
        draft.model.to(draft.dtype).float()
        after = [judge(draft.model, answers.judging, options.temperature)]
    pairs = enumerate(zip(before, after, strict=True), 1)
    # Of answers that are all short, later steps have none.
    routes = [one for step, pair in pairs if pair[0] for one in compare(*pair, step)]
    overall = next(one for one in routes if one.route == ALL)
    routes.remove(overall)
    written = force or overall.gain.low > 0
    if written:
        save_head(draft, output) if isinstance(draft, Head) else save_draft(draft, output)
    return TuneReport(
        draft=str(output) if written else None,
        source=draft.source,
        tokens=sum(len(answer.tokens) for answer in answers.training),
        interrupted=not finished,
        routes=tuple(routes),
        overall=overall,
    )
