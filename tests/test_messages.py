"""The messages that users read most, whole. `pytest --snapshot-update tests/test_messages.py` records them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specexport import SamplingParameters, errors
from specexport.bundle import MANIFEST, Bundle, Contract, write_manifest
from specexport.cli import main
from specexport.engines.registry import engine_module
from specexport.exporter.options import BuildOptions
from specexport.runtime.grammar.grammar import Grammar
from specexport.runtime.session import Session
from specexport.runtime.text.prompt_file import read_prompts
from specexport.serve.settings import ServerSettings, check_listening
from specexport.serve.wire.body import parse
from specexport.serve.wire.errors import ApiError, of_engine
from specexport.serve.wire.requests import ChatRequest
from support.doubles import FakeDecoder, fake_session, write_bundle
from support.refusals import says

CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
Say = Callable[[Path], object]


def command(*arguments: object) -> Say:
    """What a command shows. `.`: the folder of the test."""

    def say(folder: Path) -> str:
        given = [
            str(folder / argument[2:]) if str(argument).startswith("./") else str(argument) for argument in arguments
        ]
        result = CliRunner().invoke(main, given)
        assert result.exit_code in (1, 2), (result.exception, result.output)
        return result.stderr.splitlines()[-1]

    return say


def session(call: Callable[[Session], object]) -> Say:
    return lambda folder: call(
        fake_session(folder / "demo.bundle", FakeDecoder(CONTRACT, 300), FakeDecoder(CONTRACT, 300))
    )


def body(**fields: Any) -> Say:
    """What a client is answered."""
    given = json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
    return lambda folder: parse(ChatRequest, given, strict=False)


def edited(change: Callable[[Path], object]) -> Say:
    """Of a bundle that was changed after the build."""

    def say(folder: Path) -> object:
        root = folder / "demo.bundle"
        write_manifest(root, write_bundle(root).manifest)
        change(root)
        return Bundle.open(root)

    return say


def rewritten(**values: Any) -> Say:
    return edited(
        lambda root: (root / MANIFEST).write_text(json.dumps(json.loads((root / MANIFEST).read_text()) | values))
    )


def prompts(line: str) -> Say:
    def say(folder: Path) -> object:
        (folder / "prompts.jsonl").write_text(line)
        return read_prompts(folder / "prompts.jsonl")

    return say


MESSAGES: dict[str, Say] = {
    "build: no target": command("build", "--draft", "lookup", "-o", "./out.bundle"),
    "build: no such checkpoint": command("build", "--target", "no/such/one", "-o", "./out.bundle"),
    "build: a precision": command("build", "--target", "x/y", "--precision", "int3", "-o", "./out.bundle"),
    "build: drafting too far": lambda folder: BuildOptions(max_seq_len=64, max_draft_tokens=33),
    "generate: no bundle": command("generate", "./nothing.bundle", "--prompt", "x"),
    "generate: no prompt": command("generate", "./nothing.bundle"),
    "a command that there is not": command("generat"),
    "serve: a port": command("serve", "./nothing.bundle", "--port", "80x"),
    "inspect: no bundle": command("inspect", "./nothing.bundle"),
    "calibrate: no prompts": prompts("\n"),
    "a prompt file's line": prompts('{"text": "x"}\n'),
    "serve: without keys": lambda folder: check_listening("0.0.0.0", ServerSettings()),
    "serve: a text for several": lambda folder: ServerSettings(api_keys="secret"),  # type: ignore[arg-type]
    "an engine that there is not": lambda folder: engine_module("cuda"),
    "a package that is missing": lambda folder: errors.MissingPackageError("llguidance", "grammar"),
    "bundle: too new": rewritten(schema_version=99),
    "bundle: a wrong type": rewritten(created=3),
    "bundle: a file is missing": edited(lambda root: (root / "graphs/draft.weights").unlink()),
    "bundle: a file was changed": edited(lambda root: (root / "graphs/draft.weights").write_bytes(b"x")),
    "temperature": lambda folder: SamplingParameters(temperature=-1),
    "max_new_tokens": lambda folder: SamplingParameters(max_new_tokens=0),
    "logit_bias": lambda folder: SamplingParameters(logit_bias={3: 200}),
    "stop": lambda folder: SamplingParameters(stop=["a", ""]),
    "num_draft_tokens": session(lambda session: session.generate("x", num_draft_tokens=9)),
    "drafter": session(lambda session: session.generate("x", drafter="oracle")),
    "an empty prompt": session(lambda session: session.generate("")),
    "a long prompt": session(lambda session: session.generate([1] * 64)),
    "an unknown token": session(lambda session: session.generate([1, 300])),
    "a chat without a template": session(lambda session: session.generate([{"role": "user", "content": "x"}])),
    "a session with a stream": session(lambda session: (session.stream("x"), session.stream("x"))),
    "a session that was closed": session(lambda session: (session.close(), session.generate("x"))),
    "a choice of nothing": lambda folder: Grammar.choice([]),
    "a schema that is no object": lambda folder: Grammar.json_schema("[]"),
    "http: a field is missing": body(messages=[{"content": "x"}]),
    "http: out of bounds": body(temperature=3),
    "http: a wrong choice": body(messages=[{"role": "robot", "content": "x"}]),
    "http: a wrong type": body(max_tokens="many"),
    "http: not supported": body(best_of=2),
    "http: no JSON": lambda folder: parse(ChatRequest, b"{", strict=False),
    "http: a long prompt": lambda folder: of_engine(errors.LongPromptError("x", tokens=70, capacity=64)),
    "http: the engine failed": lambda folder: of_engine(errors.EngineError(f"{folder} is broken")),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_said(name: str, tmp_path: Path, snapshot: Any) -> None:
    try:
        said = MESSAGES[name](tmp_path)
    except (errors.SpecExportError, ApiError) as error:
        said = error
    message = str(said)
    says(message)
    assert message.replace(str(tmp_path), "<tmp>") == snapshot
