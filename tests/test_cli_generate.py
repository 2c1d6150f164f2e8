"""`specexport generate`: options that reach the request, grammars, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from specexport.cli import main
from specexport.cli.generate import generate, summary
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.statistics import Statistics
from support.refusals import says
from support.scripted import scripted_session, tell
from support.thinking_templates import QWEN

Run = Callable[..., Result]


@pytest.fixture
def run(built: Path) -> Run:
    def run(*arguments: object, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, ["generate", str(built), *map(str, arguments)], input=input)

    return run


@pytest.fixture
def generated(run: Run) -> Callable[..., dict[str, Any]]:
    def generated(*options: object) -> dict[str, Any]:
        result = run("--prompt", "def add def add def", "--max-new-tokens", 12, "--json", *options)
        assert result.exit_code == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    return generated


def test_the_text_streams_and_json_is_one_object(run: Run) -> None:
    given = ("--prompt", "def add", "--max-new-tokens", 12, "--num-draft-tokens", 4)
    text, whole = run(*given), run(*given, "--json")
    found = json.loads(whole.stdout)
    assert list(found) == ["text", "tokens", "finish_reason", "statistics"]
    assert (whole.stdout.count("\n"), whole.stderr) == (1, "")
    assert found["statistics"]["emitted"] == len(found["tokens"])
    assert found["statistics"]["drafted"] > 0
    assert text.stdout == found["text"] + "\n"
    assert text.stderr.startswith(f"[{found['finish_reason']}] {len(found['tokens'])} tokens, ")


@pytest.mark.parametrize(
    ("times", "shares"),
    [
        (
            {"setup": 1, "prefill": 2, "draft": 3, "target": 4, "device": 0, "total": 20},
            {"setup": 5, "prefill": 10, "draft": 15, "target": 20, "host": 50},
        ),
        ({"setup": 0, "prefill": 2, "device": 7, "total": 10}, {"prefill": 20, "device": 70, "host": 10}),
        ({"total": 0}, {}),
    ],
)
def test_shares_of_time_add_up(times: dict[str, float], shares: dict[str, int]) -> None:
    line = summary(Statistics(**{f"{name}_seconds": value for name, value in times.items()}))
    found = re.findall(r"(\w+) (\d+)%", line.partition(";")[2])
    assert {name: int(share) for name, share in found} == shares


def test_sources_of_draft_tokens_add_up() -> None:
    row = Statistics(rounds=9, drafted_by_position=[9, 6], accepted_by_position=[9, 2])
    assert "draft tokens:" not in summary(row)
    row.looked_up, row.predicted, row.predicted_accepted = 9, 4, 3
    told = "draft tokens: 6 by the model + 5 looked up + 4 looked up in the prediction (3 accepted);"
    assert told in summary(row)
    row.forced = 6
    assert summary(row).partition("draft tokens: ")[2].startswith("5 looked up + 4 looked up in the ")
    assert "(3 accepted) + 6 forced by the grammar;" in summary(row)


def test_several_that_are_not_given_are_the_bundles_own() -> None:
    found = generate.make_context("generate", ["some.bundle", "--prompt", "x", "--ban-token", "3"]).params
    assert (found["stop"], found["banned_tokens"]) == (None, (3,))


@pytest.mark.parametrize("when", [0, 3])
def test_an_interrupt_ends_the_answer_after_its_round(when: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    step, rounds = CachedDecoder.step, []

    def interrupted(*arguments: Any) -> Any:
        rounds.append(1)
        if len(rounds) == when + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    monkeypatch.setattr(CachedDecoder, "step", interrupted)
    given = ("--prompt", "def add def add", "--max-new-tokens", 60, "--drafter", "ngram", "--num-draft-tokens", 4)
    result = run(*given, "--json")
    assert (result.exit_code, result.stderr) == (130, "")
    found = json.loads(result.stdout)
    row = found["statistics"]
    assert (found["finish_reason"], row["rounds"], row["emitted"]) == ("cancelled", when + 1, len(found["tokens"]))
    assert row["drafted"] == row["looked_up"] > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_ends_it_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(CachedDecoder, "step", interrupted)
    result = run("--prompt", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Interrupted\n")


@pytest.mark.slow
def test_options_reach_the_request(generated: Callable[..., dict[str, Any]]) -> None:
    """Every one of them changes what comes, or forbids what came."""
    plain = generated("--plain")["tokens"]
    assert generated()["tokens"] == generated("--num-draft-tokens", 0)["tokens"] == plain
    assert len(plain) == 12
    assert generated("--logit-bias", "5=100")["tokens"] == [5] * 12
    biased = generated("--logit-bias", "5=100", "--logit-bias", "6=-2.5", "--ban-token", 5)["tokens"]
    assert 5 not in biased
    for name, value in (("repetition", 5), ("presence", 2), ("frequency", 2)):
        assert len(set(generated("--logit-bias", "5=4", f"--{name}-penalty", value)["tokens"])) > 1
    sampled = ("--temperature", 1.5, "--seed", 3)
    assert generated(*sampled)["tokens"] != plain
    assert generated(*sampled, "--min-p", 1)["tokens"] == plain
    assert len(generated(*sampled, "--verification", "token")["tokens"]) == 12


def test_every_sampling_parameter_has_its_option(run: Run) -> None:
    offered = run("--help").stdout
    for field in fields(SamplingParameters):
        flag = field.metadata["option"].flag
        if flag != "":
            assert f"  {flag or '--' + field.name.replace('_', '-')} " in offered


@pytest.mark.parametrize("drafter", ["model", "ngram", "ngram+model"])
def test_every_drafter_gives_the_same(drafter: str, generated: Callable[..., dict[str, Any]]) -> None:
    found = generated("--drafter", drafter, "--num-draft-tokens", 4, "--logit-bias", "5=3")
    assert found["tokens"] == generated("--plain", "--logit-bias", "5=3")["tokens"]
    assert found["statistics"]["drafted"] > 0
    assert ("ngram" in drafter) == (found["statistics"]["looked_up"] > 0)


@pytest.mark.parametrize("option", ["--num-draft-tokens=2", "--drafter=ngram"])
def test_plain_decoding_takes_no_option_of_drafts(option: str, run: Run) -> None:
    found = run("--prompt=a", "--plain", option)
    assert found.exit_code == 2
    assert f"{option.partition('=')[0]} is for drafts, and --plain does not draft; give only one" in found.stderr


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--prompt", "--prediction"),
        ("--json-schema", "--prompt"),
        ("--messages", "--grammar"),
        ("--prediction", "--json-schema"),
    ],
)
def test_one_option_reads_stdin(first: str, second: str, run: Run) -> None:
    text = [] if "--prompt" in (first, second) or "--messages" in (first, second) else ["--prompt", "x"]
    found = run(first, "-", second, "-", *text, input="{}")
    assert (found.exit_code, found.stdout) == (2, "")
    says(found.stderr, f"{first} and {second} cannot both come from stdin; give one in another way")


def test_a_route_that_has_no_effect_is_said(run: Run) -> None:
    found = run("--prompt=a", "--max-new-tokens", 2, "--route", "code")
    assert found.exit_code == 0
    assert found.stderr.startswith("--route code has no effect: the session follows no policy; ")


def test_what_truncates_a_greedy_choice_is_said_to_have_no_effect(run: Run) -> None:
    given = ("--prompt=a", "--max-new-tokens", 2, "--top-p", 0.5, "--top-k", 3)
    says(run(*given).stderr.splitlines()[0], "--top-p", "--top-k", "--temperature")
    for more in (("--temperature", 1), ("--top-p", 1, "--top-k", 0)):
        assert "no effect" not in run(*given, *more).stderr


def test_an_end_at_the_capacity_is_said(run: Run) -> None:
    given = ("--prompt", "def add", "--ban-token", 1)  # a full bundle of 64 tokens
    for json_ in ((), ("--json",)):
        told = run(*given, "--max-new-tokens", 100, *json_).stderr.splitlines()[-1]
        says(told, "--max-new-tokens 100", 64, "--max-seq-len")
    assert "--max-seq-len" not in run(*given, "--max-new-tokens", 12).stderr


def test_a_prediction_comes_from_a_file(run: Run, tmp_path: Path) -> None:
    arguments = ("--prompt", "def add(a):\n", "--max-new-tokens", 24)
    plain, file = run(*arguments, "--plain"), tmp_path / "expected.txt"
    file.write_text(plain.stdout, encoding="utf-8")
    found = run(*arguments, "--prediction", file)
    assert found.stdout == plain.stdout
    assert "looked up in the prediction" in found.stderr
    for other, source in (("--plain", file), ("--prompt=-", "-")):
        assert run("--prompt=a", other, "--prediction", source).exit_code == 2
    file.write_bytes(b"\xff\xfe")
    wrong = run(*arguments, "--prediction", file)
    assert wrong.exit_code == 2
    says(wrong.stderr, "expected.txt", "UTF-8")
    file.write_bytes(b"")
    empty = run(*arguments, "--prediction", file)
    assert empty.stdout == plain.stdout
    assert "expected.txt is empty" in empty.stderr
    assert run(*arguments, "--prediction", tmp_path / "missing.txt").exit_code == 2


def test_the_prompt_comes_from_stdin_and_messages_from_a_file(run: Run, tmp_path: Path) -> None:
    given = run("--prompt", "def add(a):\n", "--max-new-tokens", 8)
    assert run("--prompt", "-", "--max-new-tokens", 8, input="def add(a):\n").stdout == given.stdout
    rendered = run("--prompt", "<user>hi<assistant>", "--max-new-tokens", 8)
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    for options in (("--messages", path), ("--chat", "hi"), ("--chat", "-")):
        assert run(*options, "--max-new-tokens", 8, input="hi").stdout == rendered.stdout
    for wrong in ("{", '"hi"', "[1, 2]", '[{"role": "sytem", "content": "hi"}]'):
        path.write_text(wrong)
        assert run("--messages", path).exit_code == 2


SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9}, "kind": {"enum": ["add", "sub"]}},
    "required": ["number", "kind"],
    "additionalProperties": False,
}
UNDER = ("--prompt", "def add", "--max-new-tokens", 50)


@pytest.mark.parametrize("plain", [(), ("--plain",)])
def test_json_of_a_schema(run: Run, tmp_path: Path, plain: tuple[str, ...]) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    result = run(*UNDER, "--json-schema", tmp_path / "schema.json", *plain)
    assert result.exit_code == 0, result.stderr
    jsonschema.validate(json.loads(result.stdout), SCHEMA)
    assert ("forced by the grammar" in result.stderr) == (not plain)


def test_messages_name_options_wherever_they_stand(run: Run) -> None:
    line = run(*UNDER, "--num-candidates", "2").stderr.splitlines()[-1]
    says(line, "--num-candidates", "'spectr'")
    assert "num_candidates" not in line


def test_a_regex_choices_and_lark(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sum.lark").write_text('start: NUMBER "+" NUMBER\nNUMBER: /[1-9]{2}/\n')
    assert run(*UNDER, "--regex", "(ab){3}").stdout == "ababab\n"
    assert run(*UNDER, "--choice", "yes (or so)", "--choice", "no").stdout in ("yes (or so)\n", "no\n")
    assert re.fullmatch(r"\d\d\+\d\d\n", run(*UNDER, "--grammar", tmp_path / "sum.lark").stdout)
    assert run(*UNDER, "--regex", "a", "--choice", "b").exit_code == 2
    for option, wrong in (("--regex", "("), ("--choice", "")):
        says(run(*UNDER, option, wrong).stderr.splitlines()[-1], f"{option}: ")


@pytest.mark.parametrize("text", ["{", '{"type": "string", "minLength": 3, "maxLength": 2}', "\ud800"])
def test_grammars_that_are_wrong(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "schema.json").write_bytes(text.encode(errors="surrogatepass"))
    result = run(*UNDER, "--json-schema", tmp_path / "schema.json")
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    says(result.stderr, "schema.json")


def test_thoughts_go_to_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted_session(tmp_path, QWEN, "assistant\n", atoms=("<think>", "</think>"))
    tell(session, "<think>\nHm, 7?\n</think>\n\nNo.")
    monkeypatch.setattr("specexport.runtime.load.load", lambda *_, **__: session)
    options = ["generate", str(tmp_path), "--chat", "Hello", "--choice", "7"]
    result = CliRunner().invoke(main, options)
    assert (result.stdout, result.stderr.partition("[stop]")[0]) == ("7\n", "Hm, 7?\n")
    assert json.loads(CliRunner().invoke(main, [*options, "--json"]).stdout)["text"] == "7"
    result = CliRunner().invoke(main, [*options[:4], "--max-new-tokens", "5"])
    assert (result.stdout, result.stderr.partition("[length]")[0]) == ("\n", "Hm,\n")
    result = CliRunner().invoke(main, options[:4])
    assert (result.stdout, result.stderr.partition("[stop]")[0]) == ("No.\n", "Hm, 7?\n")
