"""`specexport tune`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .doctor import lacking
from .options import BUNDLE, JSON, LIMIT, SEED, SKIP_INVALID, running
from .progress import bar, requests_of

if TYPE_CHECKING:
    from ..calibration.measuring.prompts import Progress, Request
    from ..exporter.tuning.tune import TuneReport
    from ..runtime.session import Session

SHIPPED_TOKENS = 64


@click.command()
@BUNDLE
@click.option(
    "--prompts",
    required=True,
    type=click.Path(path_type=Path),
    help='JSONL file of {"route": ..., "prompt" or "messages": ...} lines, at least 20 different ones.',
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Draft checkpoint to create.")
@click.option(
    "--draft",
    help="Checkpoint to tune. [default: the one that the bundle's draft was built from, if it is here or on the hub]",
)
@click.option("--fresh", metavar="LAYERSxWIDTH", help="Train a new draft of this shape instead, such as 4x512.")
@click.option(
    "--judge",
    "others",
    type=click.Path(path_type=Path),
    help="JSONL of further prompts that only judge the draft, to show what tuning costs on other text.",
)
@SKIP_INVALID
@LIMIT
@click.option("--max-new-tokens", type=int, default=128, show_default=True, help="Maximum tokens per answer.")
@click.option("--answers", type=int, default=3, show_default=True, help="Answers per prompt to train on.")
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    show_default=True,
    help="Temperature of the answers, as served; 0 is greedy.",
)
@click.option("--loss", default="kl", show_default=True, help="kl, or lk for a mix of KL and acceptance.")
@click.option("--epochs", type=int, default=4, show_default=True, help="Maximum passes over the answers.")
@click.option(
    "--general",
    type=float,
    default=0.4,
    show_default=True,
    help="Maximum share of answers to a built-in set of texts, which keeps the draft good at other text.",
)
@click.option(
    "--rate",
    type=float,
    help="Factor on the learning rates. [default: 1 for a new draft or above 50 M weights, else 0.3]",
)
@SEED
@click.option(
    "--journal",
    type=click.Path(path_type=Path),
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
    fresh: str | None,
    others: Path | None,
    skip_invalid: bool,
    limit: int | None,
    journal: Path | None,
    force: bool,
    where: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Tune a draft on your own prompts.

    The bundle's target answers the prompts, and the draft learns from its answers. A fifth of the prompts is held out
    and judges the draft before and after; it is written, as a checkpoint for `specexport build --draft`, only if it is
    accepted more often there. If interrupted while answers are written, the same command resumes; if interrupted while
    training, the best draft so far is judged.
    """
    if reasons := lacking():
        raise click.ClickException("; ".join(reasons))
    from ..exporter.tuning.options import Shape, TuneOptions

    chosen = TuneOptions(**options)
    shape = Shape.parse(fresh) if fresh is not None else None
    if shape is not None and draft is not None:
        raise click.ClickException(
            "--draft and --fresh are both given; give the one to tune, or the shape of a new one"
        )
    _check_packages()
    from ..bundle.output import check_free
    from ..calibration.measuring.prompts import choose
    from ..exporter.tuning.drafts import find_draft, load_draft, new_draft
    from ..exporter.tuning.options import split
    from ..exporter.tuning.tune import require_room, write_all
    from ..exporter.tuning.tune import tune as run
    from .progress import load

    check_free(output, None)
    session = load(bundle, **where)
    kept = journal or output.with_name(output.name + ".answers.jsonl")
    make = (
        partial(load_draft, find_draft(session.bundle, draft))
        if shape is None
        else partial(new_draft, session.bundle, shape, chosen.seed)
    )
    requests = choose(_requests(session, prompts, chosen.max_new_tokens, skip_invalid), (), limit)
    judged = [] if others is None else _requests(session, others, chosen.max_new_tokens, skip_invalid)
    parts = split(requests, judged, _shipped(session, chosen.max_new_tokens) if chosen.general else [])
    for message in parts.left_out:
        click.echo(f"left out: {message}", err=True)
    made = make()
    require_room(output.parent, 4 * made.model.num_parameters())
    try:
        answers = write_all(session, parts, chosen, kept, _Display())
        session.close()
        report = run(made, answers, output, chosen, force, _Display())
    except KeyboardInterrupt:  # an interrupt ends training, and the best draft so far is judged
        click.echo(f"interrupted; the answers are kept in {kept}; run the same command again to resume", err=True)
        raise SystemExit(130) from None
    click.echo(json.dumps(report.as_dict()) if as_json else _render(report))
    if report.draft is None and report.trained.interrupted:
        click.echo(
            "interrupted before the draft was clearly better on held-out prompts, so nothing was written; the answers "
            f"are kept in {kept}, and the same command trains again",
            err=True,
        )
        raise SystemExit(130)
    if report.draft is None:
        raise click.ClickException(
            "the draft is not clearly better on held-out prompts, so nothing was written; the answers are kept in "
            f"{kept}: give more prompts or --answers, or write it with --force"
        )
    click.echo(f"build with it: specexport build --draft {output} ..., and calibrate again", err=True)


def _check_packages() -> None:
    from importlib.util import find_spec

    from ..errors import MissingPackageError

    for package in ("torch", "transformers", "safetensors"):
        if find_spec(package) is None:
            raise MissingPackageError(package, "tune")


def _requests(session: Session, path: Path, max_new_tokens: int, skip_invalid: bool) -> list[Request]:
    from ..runtime.text.prompt_file import read_prompt_lines

    return requests_of(session, read_prompt_lines(path, skip_invalid), max_new_tokens, skip_invalid)


def _shipped(session: Session, max_new_tokens: int) -> list[Request]:
    """The first parts of the built-in texts."""
    from ..calibration.measuring.prompts import Request
    from ..exporter.weights.texts import read_texts

    starts = [session.tokenizer.encode(text).ids[:SHIPPED_TOKENS] for text in read_texts(None)]
    room = session.capacity - SHIPPED_TOKENS
    return [
        Request(place, "general", tuple(start), min(max_new_tokens, room))
        for place, start in enumerate(starts)
        if start and room > 0
    ]


class _Display:
    """Implements `exporter.tuning.tune.Display`."""

    @contextmanager
    def stage(self, label: str) -> Iterator[Progress]:
        click.echo(label, err=True)
        with bar(label) as advance:
            yield advance

    def note(self, message: str) -> None:
        click.echo(message, err=True)


def _render(report: TuneReport) -> str:
    lines = [
        f"{report.source}: trained on {report.tokens} tokens of answers, best after epoch {report.trained.epoch}"
        + (", interrupted" if report.trained.interrupted else ""),
        f"{'route':<12} {'prompts':>7} {'tokens':>7} {'before':>7} {'after':>7}  gain, 95 % interval",
    ]
    for one in (*report.routes, report.tuned):
        name = "tuned on" if one is report.tuned else one.route
        lines.append(
            f"{name:<12} {one.prompts:>7} {one.tokens:>7} {one.before:>7.1%} {one.after:>7.1%}  "
            f"{one.gain.value:+.1%} [{max(one.gain.low, -1):+.1%}, {min(one.gain.high, 1):+.1%}]"
        )
    return "\n".join(lines)
