"""`specexport chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import PromptError, SpecExportError
from ..runtime.sampling.parameters import SamplingParameters
from ..runtime.tools.answer import AnswerReader, Thought
from .generate import answering, brief, cancelled_by_ctrl_c
from .options import BUNDLE, CHAT_TEMPLATE, note_unused, policy_note, running, sampling_options

if TYPE_CHECKING:
    from rich.console import Console

    from ..runtime.loop.chunks import Chunk
    from ..runtime.session import Session
    from ..runtime.state.statistics import Statistics

Message = dict[str, str]
PROBE: list[Message] = [{"role": "user", "content": "a"}]
KEY = "\\C-t"  # as readline writes Ctrl-T
HELP = "/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves"
COMMANDS = {
    "/plain": "turns drafts off, or on again: the same model, one token per pass",
    "/colour": "shows accepted draft tokens in green, or no longer (Ctrl-T)",
    "/system TEXT": "sets the system message; without TEXT it removes it",
    "/reset": "drops the conversation, and keeps the system message",
    "/quit": "leaves (Ctrl-D)",
}
ACCEPTED = "green"


@click.command()
@BUNDLE
@click.option("--system", metavar="TEXT", help="System message before the conversation.")
@CHAT_TEMPLATE
@sampling_options
@running
def chat(
    bundle: Path,
    system: str | None,
    chat_template: Path | None,
    where: dict[str, Any],
    max_new_tokens: int,
    **options: Any,
) -> None:
    """Chat with the model in the terminal.

    Accepted draft tokens are green; Ctrl-T toggles the colours (Ctrl-Y restores the typed text). /help lists the
    commands, Ctrl-C stops an answer, Ctrl-D quits. Piped input is one message per line; piped output has only answers.
    Thoughts of a model that reasons are dim, and are left out of later prompts.
    """
    from rich.console import Console

    from .progress import load

    with suppress(ImportError):  # line editing, and one key for the colours
        import readline

        readline.parse_and_bind(f'"{KEY}": "\\C-e\\C-u/colour\\n"')  # the line is cleared first
    parameters = {"max_new_tokens": max_new_tokens, **options}
    # The budget lets a model that keeps states go on from an earlier turn.
    with load(bundle, prompt_cache_bytes=None, chat_template=chat_template, **where) as session:
        note_unused(session, SamplingParameters(**parameters))
        console = Console(highlight=False, soft_wrap=True)
        notes = console if console.file.isatty() else Console(highlight=False, soft_wrap=True, stderr=True)
        conversation = Conversation(session, console, notes, system, parameters)
        # A wrong option ends the command, not every answer.
        session.stream(conversation.with_system(PROBE), **parameters).close()
        conversation.run(_ask)


def _ask() -> str | None:
    if sys.stdin is None:  # it is closed
        return None
    typed, piped = sys.stdin.isatty(), not sys.stdout.isatty()
    if not typed:  # by lines of bytes, so that one which is not UTF-8 takes no others along
        line = sys.stdin.buffer.readline()
        return line.decode(sys.stdin.encoding).rstrip("\r\n") if line else None
    if piped:
        click.echo("> ", nl=False, err=True)
    try:
        return input("" if piped else "> ")
    except EOFError:
        click.echo(err=piped)  # the shell's prompt begins a line
        return None


class Conversation:
    """Messages so far, and how the next ones are answered.

    console: for answers; notes: for all else, which is no part of piped output. parameters: keywords of
    `Session.stream`, max_new_tokens among them. Where the messages outgrow the bundle's capacity, the oldest are left
    out.
    """

    def __init__(
        self, session: Session, console: Console, notes: Console, system: str | None, parameters: dict[str, Any]
    ) -> None:
        self.session, self.console, self.notes, self.parameters = session, console, notes, parameters
        self.messages: list[Message] = []
        self.system = system
        self.colour = True
        self.thinking = False  # whether thoughts are what was printed last

    def run(self, ask: Callable[[], str | None]) -> None:
        """ask: returns the user's next line, None at the end of the input. Its `KeyboardInterrupt` and
        `UnicodeDecodeError` end nothing.
        """
        self.say(HELP)
        while True:
            try:
                line = ask()
            except KeyboardInterrupt:
                self.say("Ctrl-D leaves")
                continue
            except UnicodeDecodeError as error:
                self.say(f"the line is not {error.encoding.upper()}; it is left out")
                continue
            if line is None or line.strip() == "/quit":
                return
            if line.startswith("/"):
                command, _, text = line.partition(" ")
                self.obey(command, text.strip())
            elif line.strip():
                self.answer(line)

    def obey(self, command: str, text: str = "") -> None:
        if text and command in ("/plain", "/colour", "/reset", "/quit"):
            self.say(f"{command} takes no text; put a space before a message that begins with /")
        elif command in ("/help", "/?"):
            for name, effect in COMMANDS.items():
                self.say(f"{name:<14}{effect}")
            self.say("A message that begins with / needs a space before it; Ctrl-C stops an answer.")
        elif command == "/plain":
            self.parameters["speculate"] = not self.parameters.get("speculate", True)
            self.say("speculative" if self.parameters["speculate"] else "plain: one token per pass of the target")
        elif command == "/colour":
            self.colour = not self.colour
            self.say(f"colours {'on' if self.colour else 'off'}")
        elif command == "/system":
            had, self.system = self.system, text or None
            removed = "the system message is removed" if had else "there is no system message; /system TEXT sets one"
            self.say("the system message is set; /reset drops the conversation before it" if text else removed)
        elif command == "/reset":
            self.messages.clear()
            self.session.reset()
            self.say("a new conversation" + (" with the same system message" if self.system else ""))
        else:
            self.say(f"there is no command {command}; /help lists them; put a space before it to send it as a message")

    def answer(self, line: str) -> None:
        """Stream the answer to `line`. A refused line leaves the conversation unchanged."""
        messages = [*self.messages, {"role": "user", "content": line}]
        text, last, reader = "", None, None
        parameters = SamplingParameters(**self.parameters)
        try:
            messages = self._fitting(messages)
            prompt, shown, reader = answering(self.session, self.with_system(messages), parameters)
            stream = self.session.stream(prompt, shown)
            with cancelled_by_ctrl_c(stream):
                for last in stream:
                    text += self.show(last, reader)
        except SpecExportError as error:
            self.say(str(error))
            return
        finally:
            self.end_thoughts()
        if not text and last is not None and (last.finish_reason == "cancelled" or (reader and reader.thinks)):
            self.say("stopped before the answer began")
            return
        if len(messages) <= len(self.messages):
            self.say("the conversation is longer than the bundle's --max-seq-len; its oldest turns were dropped")
        self.messages = [*messages, {"role": "assistant", "content": text}]
        self.console.print()
        if last is not None:
            ended = str(last.finish_reason)
            full = ended == "length" and last.statistics.emitted < self.parameters["max_new_tokens"]
            note = policy_note(self.session, parameters, last.statistics.drafted)
            self.say(status(last.statistics, "full" if full else ended) + note)

    def show(self, chunk: Chunk, reader: AnswerReader) -> str:
        """Returns what of it is the answer."""
        parts = [
            (part, self.colour and place < chunk.accepted)
            for place, piece in enumerate(chunk.pieces)
            for part in reader.add(piece)
        ]
        parts += [(part, False) for part in (reader.end() if chunk.finish_reason is not None else ())]
        text = ""
        for part, drafted in parts:
            if isinstance(part, str):
                self.end_thoughts()
                self.console.print(part, style=ACCEPTED if drafted else None, end="", markup=False)
                text += part
            elif isinstance(part, Thought):
                self.notes.print(part.text, style="dim", end="", markup=False)
                self.thinking = True
        return text

    def end_thoughts(self) -> None:
        """What comes next begins a line of its own."""
        if self.thinking:
            self.notes.print("\n")
        self.thinking = False

    def say(self, line: str) -> None:
        from rich.markup import escape

        self.notes.print(escape(line), style="dim")

    def with_system(self, messages: list[Message]) -> list[Message]:
        return [{"role": "system", "content": self.system}, *messages] if self.system else messages

    def _fitting(self, messages: list[Message]) -> list[Message]:
        """The newest messages that leave room for an answer. Whole turns are dropped, the oldest first."""
        capacity = self.session.capacity
        room = min(int(self.parameters["max_new_tokens"]), capacity // 4)
        while len(messages) > 2 and self._length(messages) + room > capacity:
            messages = messages[2:]
        return messages

    def _length(self, messages: list[Message]) -> int:
        """Length in tokens. A prompt refused as too long counts as the whole capacity."""
        try:
            return len(self.session.encode(self.with_system(messages)))
        except PromptError:
            return self.session.capacity


def status(statistics: Statistics, finish_reason: str) -> str:
    """finish_reason: or `full`, of a bundle whose capacity ended it."""
    ends = {"stop": "", "length": "; stopped at its limit", "cancelled": "; stopped"}
    ends["full"] = "; stopped at the bundle's --max-seq-len"
    return ", ".join(brief(statistics)) + ends[finish_reason]
