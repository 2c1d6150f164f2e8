"""`specexport tune`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .doctor import require_packages
from .options import BUNDLE, FILE, JSON, LIMIT, PROMPTS, SKIP_INVALID, output_option, running
from .progress import bar, requests_of

if TYPE_CHECKING:
    from ..exporter.tuning.tune import TuneReport


@click.command()
@BUNDLE
@PROMPTS
@output_option("Draft checkpoint to create.")
@click.option(
    "--draft", help="Draft to tune: a checkpoint folder, or one on the hub. [default: with --kind eagle3 a new head]"
)
@click.option(
    "--kind",
    type=click.Choice(["model", "eagle3"]),
    default="model",
    help="model: a separate model; eagle3: a head that reads the target's hidden states.",
)
@click.option("--target", help="For a head: the checkpoint that the bundle was built from.")
@click.option(
    "--vocabulary", type=int, help="For a new head: how many tokens it proposes, the most frequent. [default: 32768]"
)
@click.option("--inner", type=int, help="For a new head: width of its MLP. [default: the target's]")
@SKIP_INVALID
@LIMIT
@click.option("--max-new-tokens", type=int, default=128, help="Maximum tokens per answer.")
@click.option("--answers", type=int, default=3, help="Answers per prompt to train on.")
@click.option(
    "--temperature", type=float, default=0.0, help="Temperature of the answers, as served; every third answer is at 1."
)
@click.option("--epochs", type=int, default=4, help="Passes over the answers.")
@click.option(
    "--general",
    type=float,
    default=0.4,
    help="Maximum share of training tokens that answer built-in prompts, so that other text is not forgotten.",
)
@click.option(
    "--journal",
    type=FILE,
    help="File that keeps answers for all runs with this target. [default: OUTPUT.answers.jsonl]",
)
@click.option("--force", is_flag=True, help="Write the draft even if it is not clearly better.")
@running
@JSON
def tune(
    bundle: Path,
    prompts: Path,
    output: Path,
    draft: str | None,
    kind: str,
    target: str | None,
    skip_invalid: bool,
    limit: int | None,
    journal: Path | None,
    force: bool,
    where: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Train a draft on the target's answers to your prompts.

    The bundle's target answers the prompts, at least 20 different ones, and the draft learns from the answers. A fifth
    of the prompts is held out. The draft is written, as a checkpoint for `specexport build --draft`, only if it is
    accepted more often on these. An interrupted run resumes its answers; if interrupted while training, the draft is
    judged as it is.

    --kind eagle3 with --target trains an EAGLE-3 head, a new one without --draft.
    """
    if kind == "eagle3" and target is None:
        raise click.UsageError("--kind eagle3 needs --target, the checkpoint that the bundle was built from")
    if kind == "model" and (draft is None or target is not None):
        raise click.UsageError(
            "--draft is missing; without one, only a head can be trained: --kind eagle3"
            if draft is None
            else "--target is for --kind eagle3"
        )
    for name in ("vocabulary", "inner"):
        if draft is not None and options[name] is not None:
            raise click.UsageError(f"--{name} is for a new head, and --draft has its own; leave one of them out")
    require_packages("tune")
    from ..bundle.output import check_free
    from ..exporter.tuning.answers import write_all
    from ..exporter.tuning.options import TuneOptions, split
    from ..runtime.text.prompt_file import read_prompt_lines
    from .progress import load

    chosen = TuneOptions(**options)
    check_free(output, None)
    read = read_prompt_lines(prompts, skip_invalid)
    kept = journal or output.with_name(output.name + ".answers.jsonl")
    try:
        with load(bundle, **where) as session:
            requests = requests_of(session, read, chosen.max_new_tokens, skip_invalid, limit)
            training, judging = split(requests)
            if kept.exists():
                click.echo(f"resuming with the answers in {kept}", err=True)
            click.echo(f"loading {target or draft}", err=True)
            from ..exporter.tuning.drafts import load_draft
            from ..exporter.tuning.heads import find_target, open_head
            from ..exporter.tuning.tune import tune as run

            if target is not None:
                found, head = find_target(session.bundle, target, draft)
            else:
                made = load_draft(session.bundle, str(draft))
            answers = write_all(session, training, judging, chosen, kept, bar)
        tuned = made if target is None else open_head(found, head, answers.training, chosen)
        report = run(tuned, answers, output, chosen, force, bar)
    except KeyboardInterrupt:
        left = f"the answers are kept in {kept}; run the same command again to resume"
        click.echo(f"interrupted; {left if kept.exists() else 'nothing was kept'}", err=True)
        raise SystemExit(130) from None
    click.echo(json.dumps(asdict(report)) if as_json else _render(report))
    if report.draft is None:
        remedy = "run the same command again" if report.interrupted else "give more prompts or --answers, or --force"
        click.echo(
            "Error: the draft is not clearly better on held-out prompts, so nothing was written; "
            f"{remedy} (the answers are kept in {kept})",
            err=True,
        )
        raise SystemExit(130 if report.interrupted else 1)
    click.echo(
        f"next: specexport build --target {shlex.quote(target or 'TARGET')} --draft {shlex.quote(str(output))} "
        "--output BUNDLE --force, with the options that the bundle was built with (its target is not exported again); "
        "then calibrate again",
        err=True,
    )


def _render(report: TuneReport) -> str:
    early = ", interrupted" * report.interrupted
    lines = [
        f"{report.source}: trained on {report.tokens} tokens of answers{early}",
        f"{'route':<12} {'step':>4} {'prompts':>7} {'tokens':>7} {'before':>7} {'after':>7}  gain, 95 % interval",
    ]
    for one in sorted((*report.routes, report.overall), key=lambda one: one.step):
        lines.append(
            f"{one.route:<12} {one.step:>4} {one.prompts:>7} {one.tokens:>7} {one.before:>7.1%} {one.after:>7.1%}  "
            f"{one.gain.value:+.1%} [{max(one.gain.low, -1):+.1%}, {min(one.gain.high, 1):+.1%}]"
        )
    return "\n".join(lines)
