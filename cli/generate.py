"""`specexport generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import BUNDLE, DRAFTER, ENGINE, JSON, THREADS

if TYPE_CHECKING:
    from ..runtime.state.statistics import Statistics


@click.command()
@BUNDLE
@click.option("--prompt", help="Text to continue; '-' reads stdin.")
@click.option("--messages", type=click.File(), help="JSON file with a list of chat messages {role, content}.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, help="Maximum new tokens.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0 is off.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="0 is off.")
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Penalty for tokens in prompt and output; 1 is off.",
)
@click.option(
    "--presence-penalty", type=float, default=0.0, show_default=True, help="Penalty for tokens in the output; 0 is off."
)
@click.option(
    "--frequency-penalty",
    type=float,
    default=0.0,
    show_default=True,
    help="Penalty per occurrence in the output; 0 is off.",
)
@click.option("--logit-bias", multiple=True, metavar="ID=BIAS", help="Add BIAS to the logit of token ID; repeatable.")
@click.option(
    "--ban-token",
    "banned_tokens",
    type=int,
    multiple=True,
    metavar="ID",
    help="Never generate this token; repeatable.",
)
@click.option(
    "--min-new-tokens", type=int, default=0, show_default=True, help="Generate no stop token before this many tokens."
)
@click.option("--seed", type=int, help="Random seed. [default: random]")
@click.option(
    "--verification",
    type=click.Choice(["block", "token"]),
    default="block",
    show_default=True,
    help="Acceptance rule for sampled drafts.",
)
@click.option("--stop", multiple=True, help="Stop string; repeatable.")
@click.option(
    "--num-draft-tokens",
    type=int,
    help="Draft tokens per round, 0 for none. [default: the bundle's policy, else its maximum]",
)
@click.option("--route", help="Route of the request in the bundle's policy.")
@DRAFTER
@click.option("--plain", is_flag=True, help="Decode without speculation.")
@ENGINE
@THREADS
@JSON
def generate(
    bundle: Path,
    prompt: str | None,
    messages: Any,
    engine: str | None,
    threads: int,
    as_json: bool,
    plain: bool,
    logit_bias: tuple[str, ...],
    **options: Any,
) -> None:
    """Continue a prompt.

    The text streams to stdout, statistics go to stderr.
    """
    if (prompt is None) == (messages is None):
        raise click.UsageError("give either --prompt or --messages")
    from ..runtime.session import load

    if messages is None:
        given: Any = _stdin() if prompt == "-" else prompt
    else:
        given = _messages(messages)
    biases = _biases(logit_bias)
    session = load(bundle, engine, threads)
    stream = session.stream(given, speculate=not plain, logit_bias=biases, **options)
    text, finish_reason, statistics = "", "cancelled", None
    tokens: list[int] = []
    try:
        for chunk in stream:
            text += chunk.text
            tokens += chunk.tokens
            statistics = chunk.statistics
            finish_reason = chunk.finish_reason or finish_reason
            if not as_json:
                click.echo(chunk.text, nl=False)
    except KeyboardInterrupt:
        click.echo("", err=True)
    row = statistics.as_dict() if statistics else {}
    if as_json:
        result = {"text": text, "tokens": tokens, "finish_reason": finish_reason, "statistics": row}
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        click.echo()
        if statistics:
            click.echo(f"[{finish_reason}] {summary(statistics)}", err=True)
    if finish_reason == "cancelled":
        raise SystemExit(130)


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"the prompt on stdin is not UTF-8: {error}") from None


def _biases(given: tuple[str, ...]) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in given:
        token, _, bias = text.partition("=")
        try:
            number, value = int(token), float(bias)
        except ValueError:
            raise click.BadParameter(f"{text!r} is no ID=BIAS, such as 15=-2.5", param_hint="--logit-bias") from None
        if number in found:
            raise click.BadParameter(f"token {number} is given twice; give each token once", param_hint="--logit-bias")
        found[number] = value
    return found


def _messages(file: Any) -> list[Any]:
    try:
        found = json.load(file)
    except (ValueError, RecursionError) as error:  # also: no UTF-8
        raise click.ClickException(f"{file.name} is not JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise click.ClickException(
            f'{file.name} holds no list of messages; expected [{{"role": "user", "content": "..."}}]'
        )
    return found


def summary(statistics: Statistics) -> str:
    """One line for people: what the request did and where its time went."""
    row = statistics
    parts = [
        f"{row.emitted} tokens",
        f"{row.tokens_per_second:.1f} tokens/s",
        f"first after {row.first_token_seconds * 1e3:.1f} ms",
    ]
    if row.drafted:
        by_position = " ".join(
            f"{a}/{d}" for a, d in zip(row.accepted_by_position, row.drafted_by_position, strict=True)
        )
        parts += [
            f"{row.mean_acceptance_length:.2f} tokens/round",
            f"accepted {row.acceptance_rate:.0%} ({by_position})",
        ]
        parts += [f"{row.looked_up} of {row.drafted} draft tokens looked up"] if row.looked_up else []
    whole = row.total_seconds or 1.0
    shares = (
        ("prefill", row.prefill_seconds),
        ("draft", row.draft_seconds),
        ("target", row.target_seconds),
        ("host", row.host_seconds),
    )
    return ", ".join(parts) + "; " + " ".join(f"{name} {seconds / whole:.0%}" for name, seconds in shares)
