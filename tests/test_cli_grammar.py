"""`specexport generate` under a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from specexport.cli import main
from support.refusals import says
from support.scripted import scripted_session, tell
from support.thinking_templates import QWEN

Run = Callable[..., Result]
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9}, "kind": {"enum": ["add", "sub"]}},
    "required": ["number", "kind"],
    "additionalProperties": False,
}


@pytest.fixture
def run(built: Path) -> Run:
    def run(*options: object) -> Result:
        given = ["generate", built, "--prompt", "def add", "--max-new-tokens", 50, *options]
        return CliRunner().invoke(main, [str(one) for one in given])

    return run


def found(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("plain", [(), ("--plain",)])
def test_json_of_a_schema(run: Run, tmp_path: Path, plain: tuple[str, ...]) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    result = run("--json-schema", tmp_path / "schema.json", *plain)
    jsonschema.validate(found(result), SCHEMA)
    assert result.stderr.startswith("[stop]")
    assert ("forced by the grammar" in result.stderr) == (not plain)


def test_a_regex_choices_and_lark(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sum.lark").write_text('start: NUMBER "+" NUMBER\nNUMBER: /[1-9]{2}/\n')
    assert run("--regex", "(ab){3}").stdout == "ababab\n"
    assert run("--choice", "yes (or so)", "--choice", "no").stdout in ("yes (or so)\n", "no\n")
    left, plus, right = run("--grammar", tmp_path / "sum.lark").stdout.strip().partition("+")
    assert (len(left), plus, len(right)) == (2, "+", 2)
    assert found(run("--regex", "ab", "--json"))["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"not": {}}', '{"type": "string", "minLength": 3, "maxLength": 2}', "\ud800"]
)
def test_schemas_that_are_wrong(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "schema.json").write_bytes(text.encode(errors="surrogatepass"))
    result = run("--json-schema", tmp_path / "schema.json")
    assert (result.exit_code, result.stdout) == (1, "")
    says(result.stderr)


@pytest.mark.parametrize(
    "options", [("--regex", "((("), ("--choice", ""), ("--regex", "a{9}", "--ban-token", "-1"), ("--regex", "(?=a)")]
)
def test_what_is_refused_in_one_line(run: Run, options: tuple[str, ...]) -> None:
    result = run(*options)
    assert (result.exit_code, result.stdout) == (1, "")
    says(result.stderr)


def test_thoughts_go_to_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted_session(tmp_path, QWEN, "assistant\n", atoms=("<think>", "</think>"))
    tell(session, "<think>\nHm, 7?\n</think>\n\nNo.")
    monkeypatch.setattr("specexport.runtime.load.load", lambda *_, **__: session)
    options = ["generate", str(tmp_path), "--chat", "Hello", "--choice", "7"]
    result = CliRunner().invoke(main, options)
    assert (result.stdout, result.stderr.partition("[stop]")[0]) == ("7\n", "Hm, 7?")
    assert found(CliRunner().invoke(main, [*options, "--json"]))["text"] == "7"
