"""Text in other locales than UTF-8: what is read, what is piped, what is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import says
from test_cli_process import MAIN

pytestmark = pytest.mark.slow

ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
UTF8 = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"}
OTHERS = [ASCII, {**UTF8, "PYTHONIOENCODING": "latin-1"}, {**UTF8, "PYTHONIOENCODING": "ascii"}]
TEXT = "déjà vu 世界"


def cli(script: str, *arguments: object, env: dict[str, str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", script, *map(os.fsencode, map(str, arguments))]
    return subprocess.run(command, capture_output=True, input=stdin, env={**os.environ, **env}, check=False)


def prompt_of(done: subprocess.CompletedProcess[bytes]) -> tuple[int, list[int]]:
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout.decode("ascii"))  # whatever the locale is
    return found["statistics"]["prompt_tokens"], found["tokens"]


def test_files_and_pipes_are_the_same_text_in_every_locale(built: Path, tmp_path: Path) -> None:
    messages = tmp_path / "messages.json"
    messages.write_bytes(json.dumps([{"role": "user", "content": TEXT}], ensure_ascii=False).encode())
    options = ("--max-new-tokens", 4, "--json")
    expected = prompt_of(cli(MAIN, "generate", built, "--messages", messages, *options, env=UTF8))
    for env in OTHERS:
        assert prompt_of(cli(MAIN, "generate", built, "--messages", messages, *options, env=env)) == expected
        piped = cli(MAIN, "generate", built, "--chat", "-", *options, env=env, stdin=TEXT.encode())
        assert prompt_of(piped) == expected


@pytest.mark.parametrize("option", ["--messages", "--chat", "--prediction", "--json-schema", "--chat-template"])
def test_a_byte_order_mark_is_no_text(option: str, built: Path, tmp_path: Path) -> None:
    texts = {
        "--messages": '[{"role": "user", "content": "a"}]',
        "--json-schema": '{"type": "integer"}',
        "--chat-template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    found = []
    for mark in (b"", b"\xef\xbb\xbf"):
        file = tmp_path / "file"
        file.write_bytes(mark + texts.get(option, "a b").encode())
        given = "-" if option == "--chat" else file
        prompt = [] if option in ("--messages", "--chat") else ["--chat", "a"]
        arguments = ("generate", built, option, given, *prompt, "--max-new-tokens", 4, "--json")
        stdin = file.read_bytes() if option == "--chat" else b""
        found.append(prompt_of(cli(MAIN, *arguments, env=UTF8, stdin=stdin)))
    assert found[0] == found[1]


def test_a_piped_line_that_is_not_utf8_takes_no_others_along(built: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    command = (MAIN, "chat", built, "--chat-template", template, "--max-new-tokens", 4)
    done = cli(*command, env=UTF8, stdin=b"a\nb\xe9\nc\r\n")
    assert done.returncode == 0
    messages = done.stderr.decode()
    assert messages.count("not UTF-8") == 1
    assert messages.count("tokens/s") == 2


@pytest.mark.parametrize("option", ["--messages", "--prediction", "--grammar", "--chat-template", "--prompt"])
def test_what_is_not_utf8_is_one_line(option: str, built: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"d\xe9j\xe0 vu")
    given = "-" if option == "--prompt" else file
    prompt = [] if option in ("--messages", "--prompt") else ["--prompt", "a"]
    done = cli(MAIN, "generate", built, option, given, *prompt, env=ASCII, stdin=file.read_bytes())
    assert done.returncode in (1, 2)
    assert done.stdout == b""
    says(done.stderr.decode().strip().replace(str(file), "<file>"), "UTF")


SHOW = "from specexport.cli.group import use_utf8; use_utf8(); print('é世\\udcff\\ud800')"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "é世".encode() + b"??\n"),
        ("latin-1", b"\xe9???\n"),
        ("ascii", b"????\n"),
    ],
)
def test_what_the_output_cannot_show_is_replaced(encoding: str, shown: bytes) -> None:
    done = cli(SHOW, env={**UTF8, "PYTHONIOENCODING": encoding})
    assert (done.stdout, done.stderr) == (shown, b"")


@pytest.mark.parametrize("env", OTHERS)
def test_the_model_s_text_ends_no_command(env: dict[str, str], built: Path) -> None:
    arguments = ("--prompt", "def", "--max-new-tokens", 20, "--temperature", 1, "--seed", 3)
    done = cli(MAIN, "generate", built, *arguments, env=env)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    chat = cli(MAIN, "chat", built, "--temperature", 1, "--max-new-tokens", 20, env=env, stdin=TEXT.encode())
    assert chat.returncode == 0
    assert b"Traceback" not in chat.stderr


def test_a_path_of_any_bytes_is_an_error_of_one_line() -> None:
    command = [sys.executable, "-c", MAIN, "inspect", b"missing-\xff.bundle"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert b"missing-\\udcff.bundle" in done.stderr
