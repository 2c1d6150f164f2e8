"""`specexport chat`: every line of a user, and what becomes of the conversation."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from specexport.cli import main
from specexport.cli.chat import COMMANDS, HELP, Conversation
from specexport.runtime.load import load
from specexport.runtime.loop.chunks import Chunk
from specexport.runtime.policy.routes import Policy, RoutePolicy
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics
from specexport.runtime.tools.answer import AnswerReader
from support.refusals import says
from support.scripted import scripted_session, tell
from support.thinking_templates import MISTRAL, OPENED


@pytest.fixture
def session(built: Path) -> Iterator[Session]:
    with load(built) as session:
        yield session


class Terminal:
    def __init__(self, session: Session, colour: bool = False, system: str | None = None, **parameters: object) -> None:
        self.file = io.StringIO()
        console = Console(
            file=self.file, force_terminal=colour, color_system="standard" if colour else None, soft_wrap=True
        )
        given = {"max_new_tokens": 8, "stop_token_ids": (), "num_draft_tokens": 4, **parameters}
        self.conversation = Conversation(session, console, console, system, given)

    def type(self, *lines: str) -> str:
        """What is printed for the lines."""
        left = iter(lines)
        start = self.file.tell()
        self.conversation.run(lambda: next(left, None))
        return self.file.getvalue()[start:]


def test_an_answer_is_what_generate_says_and_is_remembered(session: Session) -> None:
    terminal = Terminal(session)
    shown = terminal.type("print", "again")
    messages = terminal.conversation.messages
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    for turn in (1, 3):
        session.reset()
        assert messages[turn]["content"] == session.generate(messages[:turn], max_new_tokens=8, stop_token_ids=()).text
        assert messages[turn]["content"] in shown
    assert shown.count("tokens/round") == 2


def test_the_policy_is_why_nothing_is_drafted(session: Session) -> None:
    off = RoutePolicy("off", "draft", 0, "fixed", (0.5,), None)
    session.decisions.policy = Policy(1, "", "onnxruntime", "", 0.0, 0.9, off, {})
    reason = "; nothing drafted: the policy's verdict is OFF"
    shown = Terminal(session, num_draft_tokens=None).type("print", "/plain", "print", "/plain", "print")
    assert shown.count(reason) == 2
    assert reason not in Terminal(session).type("print")


def test_the_system_message_stands_in_front(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    stream = session.stream
    monkeypatch.setattr(session, "stream", lambda prompt, options: given.append(prompt) or stream(prompt, options))
    shown = Terminal(session, system="be brief").type("a", "/reset", "/system be long", "b", "/reset", "/system", "c")
    assert shown.count("a new conversation with the same system message") == 2
    assert given == [
        session.encode([*({"role": "system", "content": text} for text in system), {"role": "user", "content": line}])
        for system, line in ((["be brief"], "a"), (["be long"], "b"), ([], "c"))
    ]


@pytest.mark.parametrize("system", ["\udcff", "word " * 100])
def test_a_system_message_that_cannot_be_sent_ends_the_command(system: str, built: Path) -> None:
    result = CliRunner().invoke(main, ["chat", str(built), "--system", system], input="a\n")
    assert (result.exit_code, result.stdout) == (2, "")
    says(result.stderr)


def test_accepted_tokens_have_a_colour_that_can_be_turned_off(session: Session) -> None:
    chunk = Chunk("two three", (1, 2), None, Statistics(), accepted=1, pieces=("two", " three"))
    terminal = Terminal(session, colour=True)
    for command, shown in (
        ("", "\x1b[32mtwo\x1b[0m three"),
        ("/colour", "two three"),
        ("/colour", "\x1b[32mtwo\x1b[0m three"),
    ):
        if command:
            terminal.type(command)
        start = terminal.file.tell()
        assert terminal.conversation.show(chunk, AnswerReader(None)) == "two three"
        assert terminal.file.getvalue()[start:] == shown


def test_ctrl_c_stops_the_answer_and_not_the_program(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(session, max_new_tokens=30)
    before = signal.getsignal(signal.SIGINT)
    show, shown = terminal.conversation.show, []

    def interrupt(chunk: Chunk, reader: AnswerReader) -> str:
        shown.append(chunk)
        if len(shown) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return show(chunk, reader)

    monkeypatch.setattr(terminal.conversation, "show", interrupt)
    printed = terminal.type("x", "y")
    assert "; stopped" in printed
    assert signal.getsignal(signal.SIGINT) is before
    answers = [message["content"] for message in terminal.conversation.messages if message["role"] == "assistant"]
    assert len(answers) == 2
    assert len(answers[0]) < len(answers[1])


@pytest.mark.parametrize(
    ("template", "marker", "special", "written"),
    [
        (OPENED, "assistant\n<think>\n", (), "Hm, [7]?\n</think>\n\nNo."),
        (MISTRAL, "Hello[/INST]", ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"), "[THINK]Hm, [7]?[/THINK]No."),
    ],
)
def test_thoughts_are_shown_and_left_out_of_the_next_prompt(
    tmp_path: Path, template: str, marker: str, special: tuple[str, ...], written: str
) -> None:
    session = scripted_session(tmp_path, template, marker, special, ("<think>", "</think>"))
    tell(session, written)
    terminal = Terminal(session, max_new_tokens=60, stop_token_ids=None)
    assert terminal.type("Hello").splitlines()[1:4] == ["Hm, [7]?", "", "No."]
    assert terminal.conversation.messages[1] == {"role": "assistant", "content": "No."}


def test_an_answer_stopped_within_thoughts_leaves_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted_session(tmp_path, OPENED, "assistant\n<think>\n", atoms=("<think>", "</think>"))
    tell(session, "Hm, 7?\n</think>\n\nNo.")
    terminal = Terminal(session, max_new_tokens=60, stop_token_ids=None)
    show = terminal.conversation.show

    def interrupt(chunk: Chunk, reader: AnswerReader) -> str:
        session.cancel()
        return show(chunk, reader)

    monkeypatch.setattr(terminal.conversation, "show", interrupt)
    assert terminal.type("Hello").splitlines()[2:] == ["", "stopped before the answer began"]
    assert terminal.conversation.messages == []


def test_an_answer_whose_limit_ends_its_thoughts_leaves_no_turn(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, OPENED, "assistant\n<think>\n", atoms=("<think>", "</think>"))
    tell(session, "Hm, 7?\n</think>\n\nNo.")
    terminal = Terminal(session, max_new_tokens=4, stop_token_ids=None)
    assert terminal.type("Hello").splitlines()[1:] == ["Hm,", "", "stopped before the answer began"]
    assert terminal.conversation.messages == []


def test_an_answer_stopped_before_it_began_leaves_no_turn(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(session)
    stream = session.stream

    def cancelled(*arguments: object, **options: object) -> object:
        opened = stream(*arguments, **options)  # type: ignore[arg-type]
        opened.cancel()
        return opened

    monkeypatch.setattr(session, "stream", cancelled)
    assert "stopped before the answer began" in terminal.type("print")
    assert terminal.conversation.messages == []


def test_costs_are_measured_before_the_first_line_is_asked_for(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("specexport.runtime.session.first_costs", lambda session, draft: order.append("costs"))
    monkeypatch.setattr("specexport.cli.chat._ask", lambda: order.append("asked"))
    assert CliRunner().invoke(main, ["chat", str(built)]).exit_code == 0
    assert order == ["costs", "asked"]


def test_ctrl_c_at_the_prompt_and_quit(session: Session) -> None:
    asked = []

    def ask() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return "/quit"

    Terminal(session).conversation.run(ask)
    assert len(asked) == 2


def test_a_line_that_is_no_text_ends_nothing(session: Session) -> None:
    terminal, asked = Terminal(session), 0

    def ask() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            b"\xff".decode()
        return "/quit"

    terminal.conversation.run(ask)
    assert asked == 2
    assert "not UTF-8" in terminal.file.getvalue()


def test_what_is_refused_leaves_the_conversation_as_it_was(session: Session) -> None:
    terminal = Terminal(session)
    terminal.type("print")
    before = list(terminal.conversation.messages)
    shown = terminal.type("x" * 500, "/nonsense")
    assert "--max-seq-len" in shown
    assert "there is no command /nonsense" in shown
    assert terminal.conversation.messages == before


@pytest.mark.parametrize("line", ["/help", "/?", "/help plain"])
def test_help_lists_the_commands(session: Session, line: str) -> None:
    start, *lines = Terminal(session).type(line).splitlines()
    assert start == HELP
    assert [one.split()[0] for one in lines[:-1]] == [name.split()[0] for name in COMMANDS]


def test_a_long_conversation_leaves_out_its_oldest_turns(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(session)
    shown = terminal.type(*["print"] * 8)
    assert "its oldest turns were dropped" in shown
    assert shown.count("tokens/s") == 8
    assert terminal.conversation.messages[0]["role"] == "user"
    assert len(terminal.conversation.messages) < 16
    monkeypatch.setattr(Conversation, "_length", lambda own, messages: session.capacity * (len(messages) > 4))
    assert len(terminal.conversation._fitting([{}] * 5)) == 3  # a whole turn went
    monkeypatch.setattr(Conversation, "_length", lambda own, messages: session.capacity - 1)
    assert len(terminal.conversation._fitting([{}] * 5)) == 1  # an answer needs room


def test_an_answer_says_what_its_end_was(session: Session) -> None:
    for tokens, told in ((8, "stopped at its limit"), (100, "stopped at the bundle's --max-seq-len")):
        assert Terminal(session, max_new_tokens=tokens).type("print").strip().endswith(told)


def test_piped_output_has_only_answers(built: Path) -> None:
    options = ["--max-new-tokens", "8", "--temperature", "0"]
    result = CliRunner().invoke(main, ["chat", str(built), *options], input="print\n/plain\n/reset\n/nonsense\nagain\n")
    assert result.exit_code == 0, result.output
    answers = []
    with load(built) as session:
        for prompt in ("print", "again"):
            session.reset()
            messages = [{"role": "user", "content": prompt}]
            answers.append(session.generate(messages, max_new_tokens=8, temperature=0).text + "\n")
    assert result.stdout == "".join(answers)
    for note in (HELP, "plain: one token", "a new conversation", "/nonsense", "tokens/s"):
        assert note in result.stderr


UPPER = "{% for message in messages %}{{ message.role | upper }}:{{ message.content }}\n{% endfor %}"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_another_template(built: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "upper.jinja").write_text(UPPER)
    options = ["--max-new-tokens", "4", "--chat-template", str(tmp_path / "upper.jinja")]
    asked = ["--chat", "Hi"] if command == "generate" else []
    result = CliRunner().invoke(main, [command, str(built), *asked, *options], input="Hi\n")
    assert result.exit_code == 0, result.output
    with load(built) as session:
        expected = session.generate("USER:Hi\n", max_new_tokens=4).text
    with load(built, chat_template=tmp_path / "upper.jinja") as session:
        given = session.generate([{"role": "user", "content": "Hi"}], max_new_tokens=4).text
    assert given.strip() in result.stdout
    assert given.strip() == expected.strip()


@pytest.mark.parametrize(
    ("command", "text"),
    [("generate", None), ("generate", b"\xff"), ("generate", b""), ("chat", b"{% for"), ("serve", b"{% for")],
)
def test_templates_that_fail_end_the_command(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: bytes | None
) -> None:
    """Before the graphs are prepared."""
    monkeypatch.setattr("specexport.runtime.load.load_engine", None)
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("my.jinja").write_bytes(text)
    asked = ["--chat", "Hi"] if command == "generate" else []
    result = CliRunner().invoke(main, [command, str(built), *asked, "--chat-template", "my.jinja"], input="Hi\n")
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    says(result.stderr, "my.jinja")
