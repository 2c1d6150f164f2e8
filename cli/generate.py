"""`specexport generate`."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ParameterError
from .options import (
    BUNDLE,
    CHAT_TEMPLATE,
    JSON,
    from_stdin,
    grammars,
    note_unused,
    policy_note,
    running,
    sampling_options,
    text_file,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..runtime.sampling.parameters import SamplingParameters
    from ..runtime.session import Session
    from ..runtime.state.statistics import Statistics
    from ..runtime.stream import Stream
    from ..runtime.tools.answer import AnswerReader


@click.command(context_settings={"allow_extra_args": True})
@BUNDLE
@click.option("--prompt", callback=from_stdin, help="Text to continue; - reads stdin.")
@click.option(
    "--chat",
    metavar="TEXT",
    callback=from_stdin,
    help="Message to answer, through the model's chat template; - reads stdin.",
)
@text_file("--messages", help="JSON file with a list of chat messages {role, content}.")
@CHAT_TEMPLATE
@text_file("--prediction", help="File with text that the output is likely to repeat; drafts are looked up there.")
@sampling_options
@grammars
@running
@JSON
def generate(
    bundle: Path,
    prompt: str | None,
    chat: str | None,
    messages: Any,
    chat_template: Path | None,
    prediction: Any,
    where: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a prompt, or answer a chat message.

    The text streams to stdout, statistics and a chat model's thoughts go to stderr.
    """
    if extra := click.get_current_context().args:
        raise click.UsageError(f"{extra[0]!r} stands after the bundle; give text with --prompt or --chat")
    texts = {"--prompt": prompt, "--chat": chat, "--messages": messages}
    present = [name for name, text in texts.items() if text is not None]
    if len(present) != 1:
        raise click.UsageError(f"found {' and '.join(present) or 'no text'}; give one of {', '.join(texts)}")
    from ..runtime.sampling.parameters import SamplingParameters
    from ..runtime.tools.answer import Thought
    from .progress import load

    source: Any = _messages(messages) if messages is not None else prompt if chat is None else chat
    if source == "-":
        source = _stdin()
    if chat is not None:
        if not source.strip():
            raise ParameterError("chat is empty; give a message", "chat")
        source = [{"role": "user", "content": source}]
    parameters = SamplingParameters(prediction=None if prediction is None else _text(prediction), **options)
    session = load(bundle, chat_template=chat_template, **where)
    note_unused(session, parameters)
    reader = None
    if prompt is None:
        source, parameters, reader = answering(session, source, parameters)
    stream = session.stream(source, parameters)
    text, finish_reason, statistics = "", "cancelled", None
    tokens: list[int] = []
    thinking = False  # whether thoughts are what was written last
    with cancelled_by_ctrl_c(stream, once=True):
        for chunk in stream:
            piece = chunk.text
            if reader is not None:
                parts, piece = [*reader.add(piece), *(reader.end() if chunk.finish_reason is not None else ())], ""
                for part in parts:
                    if isinstance(part, Thought):
                        click.echo(part.text, nl=False, err=True)
                        thinking = True
                    elif isinstance(part, str):
                        thinking = _end_line(thinking)
                        piece += part
            text += piece
            tokens += chunk.tokens
            statistics = chunk.statistics
            finish_reason = chunk.finish_reason or finish_reason
            if not as_json:
                click.echo(piece, nl=False)
    _end_line(thinking)
    row = statistics.as_dict() if statistics else {}
    if as_json:
        result = {"text": text, "tokens": tokens, "finish_reason": finish_reason, "statistics": row}
        click.echo(json.dumps(result))
    else:
        click.echo()
        if statistics:
            note = policy_note(session, parameters, statistics.drafted)
            click.echo(f"[{finish_reason}] {summary(statistics)}{note}", err=True)
    if finish_reason == "length" and len(tokens) < parameters.max_new_tokens:
        click.echo(
            f"stopped before --max-new-tokens {parameters.max_new_tokens}, at the {session.capacity} tokens that the "
            "bundle holds, the prompt included (build --max-seq-len)",
            err=True,
        )
    if finish_reason == "cancelled":
        raise SystemExit(130)


@contextmanager
def cancelled_by_ctrl_c(stream: Stream, once: bool = False) -> Iterator[None]:
    """Ctrl-C ends the answer at its next round, but not the program. once: a second one does, as where nobody reads the
    output.
    """

    def cancel(*_: object) -> None:
        stream.cancel()
        if once:
            signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        stream.close()


def _end_line(thinking: bool) -> bool:
    """Of the thoughts, so that what comes next begins a line."""
    if thinking:
        click.echo(err=True)
    return False


def answering(
    session: Session, messages: list[dict[str, str]], parameters: SamplingParameters
) -> tuple[list[int], SamplingParameters, AnswerReader]:
    """The token ids of messages, the parameters with which their answer shows where thoughts end, and what tells the
    thoughts from the answer.
    """
    from ..runtime.tools.answer import AnswerReader

    prompt = session.encode(messages)
    thinking = session.thinking(prompt)
    if thinking is not None:
        grammar = parameters.grammar.after(thinking) if parameters.grammar is not None else None
        parameters = replace(parameters, grammar=grammar, shown=thinking.shown)
    return prompt, parameters, AnswerReader(thinking)


def _stdin() -> str:
    if sys.stdin is None:
        raise ParameterError("the prompt is to come from stdin, which is closed; give it with --prompt or --chat")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ParameterError(f"the prompt on stdin is not UTF-8: {error}") from None


def _text(file: Any) -> str:
    text = text_of(file)
    if not text:
        click.echo(f"{file.name} is empty, so nothing can be drafted from it; leave it out", err=True)
    return text


def _messages(file: Any) -> list[dict[str, Any]]:
    from ..runtime.text.messages import check_messages

    text = text_of(file)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{file.name} is not JSON: {error}", "messages") from None
    if not isinstance(messages, list):
        raise ParameterError(
            f'{file.name} does not hold a list of messages; expected [{{"role": "user", "content": "..."}}]', "messages"
        )
    return check_messages(messages)


def summary(statistics: Statistics) -> str:
    """One line for people: what the request did and where its time went."""
    row = statistics
    parts = brief(row)
    if row.drafted:
        by_position = " ".join(
            f"{a}/{d}" for a, d in zip(row.accepted_by_position, row.drafted_by_position, strict=True)
        )
        parts[-1] += f" of {row.drafted} ({by_position})"
        parts += [f"{row.caught} of {row.candidates} candidates caught"] if row.candidates else []
        rounds = ", ".join(f"{name} in {count}" for name, count in row.rounds_by_drafter.items())
        parts += [f"drafted by {rounds} of {row.rounds} rounds"] if rounds else []
        parts += [f"{row.draft_passes} draft passes"] if row.draft_passes else []
        parts += [f"draft tokens: {sources}"] if (sources := _sources(row)) else []
    whole = row.total_seconds or 1.0
    shares = (  # they add up to the whole
        ("setup", row.setup_seconds),
        ("prefill", row.prefill_seconds),
        ("draft", row.draft_seconds),
        ("target", row.target_seconds),
        ("device", row.device_seconds),
        ("host", row.host_seconds),
    )
    return ", ".join(parts) + "; " + " ".join(f"{name} {seconds / whole:.0%}" for name, seconds in shares if seconds)


def brief(row: Statistics) -> list[str]:
    """The parts of a line about a request; the last is the rate of acceptance where tokens were drafted."""
    parts = [
        f"{row.emitted} tokens",
        f"{row.tokens_per_second:.1f} tokens/s",
        f"first after {row.first_token_seconds * 1e3:.0f} ms",
    ]
    if row.drafted:
        parts += [f"{row.emitted / row.rounds:.2f} tokens/round", f"accepted {row.acceptance_rate:.0%}"]
    return parts


def _sources(row: Statistics) -> str:
    """How many draft tokens came from where; empty if the model drew all of them."""
    drawn = row.drafted - row.looked_up - row.forced
    counts = {
        "by the model": drawn,
        "looked up": row.looked_up - row.predicted,
        f"looked up in the prediction ({row.predicted_accepted} accepted)": row.predicted,
        "forced by the grammar": row.forced,
    }
    return " + ".join(f"{count} {source}" for source, count in counts.items() if count) if drawn < row.drafted else ""
