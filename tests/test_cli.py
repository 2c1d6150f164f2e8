"""The command line: data on stdout, the rest on stderr, and every mistake in one line with exit code 1."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from specexport.bundle import MANIFEST, Bundle
from specexport.cli import main
from specexport.cli.generate import summary
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import CheckpointError, EngineError, OutputError, ParameterError, SpecExportError
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity
from specexport.runtime.policy.routes import POLICY, POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.state.statistics import Statistics
from specexport.runtime.stream import Stream
from support.ended import cause
from support.hub_cache import hub_with
from support.pair import Pair
from support.refusals import check, says

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    def run(*arguments: object, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input, catch_exceptions=True)

    return run


def error(result: Result, code: int = 1) -> str:
    """The one line of a refusal."""
    assert result.exit_code == code, (result.exception, result.stderr)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("Error: ")
    if code == 1:
        assert len(lines) == 1
    return lines[-1].removeprefix("Error: ")


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((bundle / MANIFEST).read_text())
    change(manifest)
    (bundle / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture
def build(run: Run, pair: Pair, cache: Path, built: Path, tmp_path: Path) -> Callable[..., Result]:
    """`specexport build` of the tiny pair; options given replace its own."""

    def build(*flags: str, **options: object) -> Result:
        given: dict[str, object] = dict(
            target=pair.target, draft=pair.draft, output=tmp_path / "out.bundle", cache=cache
        )
        given |= {"max-seq-len": 64, "prompt-chunk": 16} | {
            name.replace("_", "-"): value for name, value in options.items()
        }
        return run("build", *flags, *(part for name, value in given.items() for part in (f"--{name}", value)))

    return build


def test_build_prints_the_bundle_and_tells_the_rest_on_stderr(build: Callable[..., Result], tmp_path: Path) -> None:
    result = build()
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'out.bundle'}\n"
    for line in (
        "export target        reused",
        "export draft         reused",
        "prove ",
        "proved target ort: ",
        "proved draft ort: ",
    ):
        assert line in result.stderr
    assert "every graph proved\nnext: specexport " in result.stderr
    *stages, in_all = re.findall(r"^\S.* (\d+\.\d) s$", result.stderr, re.MULTILINE)
    assert sum(map(float, stages)) == pytest.approx(float(in_all))
    for line in ("import packages ", "hash the weights ", "everything else "):
        assert line in result.stderr
    check(cause(build()), "--output", "--force", code="output_exists")
    assert build("--force").exit_code == 0


@pytest.mark.parametrize("engine", ["tensorrt", "tensorrt-rtx"])
def test_a_build_for_elsewhere_says_where_to_go_on(
    build: Callable[..., Result], quick: list[CompileOptions], tmp_path: Path, engine: str
) -> None:
    """There is no GPU here: a bundle without plans is compiled on the device, one with plans is used there."""
    versions = {"tensorrt-version": "10.3"} if engine == "tensorrt" else {}
    result = build(engine=engine, **versions)
    assert result.exit_code == 0, result.stderr
    place, last = tmp_path / "out.bundle", result.stderr.splitlines()[-1]
    if engine == "tensorrt":
        assert last == f"next: copy the bundle to the device, and there: specexport compile {place} --engine tensorrt"
    else:
        assert last.startswith("next, on a host with the GPU (none here that ")
        assert f"specexport calibrate {place} --prompts FILE" in last


def test_build_names_every_draft_and_its_proof(build: Callable[..., Result], pair: Pair) -> None:
    result = build("--draft", f"one={pair.draft}", draft=f"two={pair.draft}")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^proved draft one ort: .*\n(.*\n)*proved draft two ort: ", result.stderr, re.MULTILINE)
    assert re.search(
        r"^out.bundle: target of .*, draft one of .*, draft two of 0.0 M weights in fp32;", result.stderr, re.M
    )


@pytest.mark.parametrize(
    ("options", "kind", "code", "field"),
    [
        (dict(target="no/such/folder"), CheckpointError, "checkpoint_not_found", None),
        (dict(draft="x" * 300), CheckpointError, None, None),
        (dict(max_draft_tokens=0), ParameterError, None, "max_draft_tokens"),
        (dict(max_seq_len=4), ParameterError, None, "max_seq_len"),
        (dict(max_seq_len=1000), ParameterError, None, "max_seq_len"),
        (dict(precision="int3"), ParameterError, None, "precision"),
        (dict(engine="cuda"), EngineError, "unknown_engine", "engine"),
        (dict(precision="bf16"), ParameterError, None, "precision"),
        (dict(tensorrt_version="10.3"), ParameterError, None, "tensorrt_version"),
        (dict(timing_cache="times"), ParameterError, None, "timing_cache"),
        (dict(engine="tensorrt", tensorrt_version="10.2"), EngineError, None, None),
        (dict(engine="tensorrt", compute_capability="89"), ParameterError, None, "compute_capability"),
        (dict(output="/dev/null/out"), OutputError, None, None),
        (dict(target="~nosuch/x"), CheckpointError, None, None),
        (dict(cache="/dev/null"), OutputError, None, None),
    ],
)
def test_what_cannot_be_built(
    options: dict[str, Any],
    kind: type[SpecExportError],
    code: str | None,
    field: str | None,
    build: Callable[..., Result],
    tmp_path: Path,
) -> None:
    error = cause(build(**options))
    assert type(error) is kind
    facts = [value for value in options.values() if isinstance(value, str) and field is None]
    check(error, *(fact[:100] for fact in facts[-1:]), code=code, field=field)
    assert list(tmp_path.iterdir()) == []


def last_line(result: Result) -> str:
    """Of a build, whose stages are told on stderr too."""
    assert result.exit_code == 1, (result.exception, result.stderr)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("Error: ") == 1
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


def test_a_text_behind_the_bundle_is_told_its_option(run: Run, built: Path) -> None:
    says(error(run("generate", built, "def add("), 2), "def add(")
    says(error(run("generate", built), 2), "--messages")
    says(error(run("generate", built, "--prompt", "x", "--chat", "y"), 2), "--messages")


def test_generate_streams_the_text(run: Run, built: Path) -> None:
    result = run("generate", built, "--prompt", "def add", "--max-new-tokens", 12)
    whole = json.loads(run("generate", built, "--prompt", "def add", "--max-new-tokens", 12, "--json").stdout)
    assert result.exit_code == 0
    assert result.stdout == whole["text"] + "\n"
    assert result.stderr.startswith(f"[{whole['finish_reason']}] {len(whole['tokens'])} tokens, ")


@pytest.mark.parametrize(
    ("times", "shares"),
    [
        (
            {"setup": 1, "prefill": 2, "draft": 3, "target": 4, "device": 0, "total": 20},
            {"setup": 5, "prefill": 10, "draft": 15, "target": 20, "host": 50},
        ),
        ({"setup": 0, "prefill": 2, "device": 7, "total": 10}, {"prefill": 20, "device": 70, "host": 10}),
        ({"prefill": 1, "total": 1}, {"prefill": 100}),
        ({"total": 0}, {}),
    ],
)
def test_shares_of_time_add_up(times: dict[str, float], shares: dict[str, int]) -> None:
    line = summary(Statistics(**{f"{name}_seconds": value for name, value in times.items()}))
    found = re.findall(r"(\w+) (\d+)%", line.partition(";")[2])
    assert {name: int(share) for name, share in found} == shares
    assert sum(shares.values()) == (100 if times["total"] else 0)


def test_sources_of_draft_tokens_add_up() -> None:
    row = Statistics(rounds=9, drafted_by_position=[9, 6], accepted_by_position=[9, 2])
    assert "draft tokens:" not in summary(row)
    row.looked_up, row.predicted, row.predicted_accepted = 9, 4, 3
    told = "draft tokens: 6 by the model + 5 looked up in the text + 4 looked up in the prediction (3 accepted);"
    assert told in summary(row)
    row.forced = 6
    assert summary(row).partition("draft tokens: ")[2].startswith("5 looked up in the text + 4 looked up in the ")
    assert "(3 accepted) + 6 forced by the grammar;" in summary(row)


def test_generate_json_is_one_object_and_nothing_else(run: Run, built: Path) -> None:
    result = run("generate", built, "--prompt", "def add", "--max-new-tokens", 12, "--num-draft-tokens", 4, "--json")
    found = json.loads(result.stdout)
    assert list(found) == ["text", "tokens", "finish_reason", "statistics"]
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""
    assert found["statistics"]["emitted"] == len(found["tokens"])
    assert found["statistics"]["drafted"] > 0


def test_an_answer_that_is_stopped_is_no_success(run: Run, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(stream: Stream) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stream, "__next__", stopped)
    assert run("generate", built, "--prompt", "x").exit_code == 130


def test_an_interrupt_ends_any_command_in_one_line(run: Run, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specexport.runtime.describe.describe", stopped)
    result = run("inspect", built)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Interrupted\n")


def test_plain_and_speculative_agree(run: Run, built: Path) -> None:
    arguments = ("generate", built, "--prompt", "def add", "--max-new-tokens", 20, "--json")
    speculative, plain, none = (
        json.loads(run(*arguments, *more).stdout) for more in ((), ("--plain",), ("--num-draft-tokens", 0))
    )
    assert speculative["tokens"] == plain["tokens"] == none["tokens"]
    assert plain["statistics"]["drafted"] == none["statistics"]["drafted"] == 0


def generated(run: Run, built: Path, *options: object) -> dict[str, Any]:
    result = run("generate", built, "--prompt", "def add def add def", "--max-new-tokens", 12, "--json", *options)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_options_reach_the_request(run: Run, built: Path) -> None:
    """Every one of them changes what comes, or forbids what came."""
    plain = generated(run, built)["tokens"]
    assert len(plain) == 12
    assert generated(run, built, "--logit-bias", "5=100")["tokens"] == [5] * 12
    assert (
        generated(run, built, "--logit-bias", "5=100", "--logit-bias", "6=-2.5", "--ban-token", 5)["tokens"].count(5)
        == 0
    )
    banned = generated(run, built, *(part for token in set(plain) for part in ("--ban-token", token)))["tokens"]
    assert not set(plain) & set(banned)
    for name, value in (("repetition", 5), ("presence", 2), ("frequency", 2)):
        assert len(set(generated(run, built, "--logit-bias", "5=4", f"--{name}-penalty", value)["tokens"])) > 1
    sampled = ("--temperature", 1.5, "--seed", 3)
    assert generated(run, built, *sampled)["tokens"] != plain
    assert generated(run, built, *sampled, "--min-p", 1)["tokens"] == plain
    assert len(generated(run, built, *sampled, "--verification", "token")["tokens"]) == 12


def test_every_sampling_parameter_has_its_option(run: Run) -> None:
    offered = run("generate", "--help").stdout
    for field in fields(SamplingParameters):
        flag = field.metadata["option"].flag
        if flag != "":
            assert f"  {flag or '--' + field.name.replace('_', '-')} " in offered


@pytest.mark.parametrize("drafter", ["model", "ngram", "suffix", "ngram+model", "suffix+model"])
def test_every_drafter_gives_the_same(drafter: str, run: Run, built: Path) -> None:
    arguments = ("--logit-bias", "5=3")
    found = generated(run, built, "--drafter", drafter, "--num-draft-tokens", 4, *arguments)
    assert found["tokens"] == generated(run, built, "--plain", *arguments)["tokens"]
    assert found["statistics"]["drafted"] > 0
    assert ("ngram" in drafter or "suffix" in drafter) == (found["statistics"]["looked_up"] > 0)


@pytest.mark.parametrize("option", ["--num-draft-tokens=2", "--num-leaves=1", "--drafter=ngram"])
@pytest.mark.parametrize("command", [("generate", "--prompt=a"), ("chat",)])
def test_plain_decoding_takes_no_option_of_drafts(command: tuple[str, ...], option: str, run: Run, built: Path) -> None:
    found = run(command[0], built, *command[1:], "--plain", option)
    assert found.exit_code == 2
    assert f"{option.partition('=')[0]} is for drafts, and --plain does not draft; give only one" in found.stderr


def test_a_route_that_has_no_effect_is_told(run: Run, built: Path) -> None:
    found = run("generate", built, "--prompt=a", "--max-new-tokens", 2, "--route", "code")
    assert found.exit_code == 0
    assert found.stderr.startswith("--route code has no effect: this bundle has no policy; ")


def test_a_prediction_comes_from_a_file(run: Run, built: Path, tmp_path: Path) -> None:
    arguments = ("generate", built, "--prompt", "def add(a):\n", "--max-new-tokens", 24)
    plain = run(*arguments, "--plain")
    (tmp_path / "expected.txt").write_text(plain.stdout, encoding="utf-8")
    found = run(*arguments, "--prediction", tmp_path / "expected.txt")
    assert found.stdout == plain.stdout
    row = json.loads(run(*arguments, "--prediction", tmp_path / "expected.txt", "--json").stdout)["statistics"]
    told = f"{row['predicted']} looked up in the prediction ({row['predicted_accepted']} accepted)"
    assert told in found.stderr
    for other, why in (("--plain", "--plain does not draft"), ("--prompt=-", "cannot both come from stdin")):
        source = "-" if other != "--plain" else tmp_path / "expected.txt"
        assert why in run("generate", built, "--prompt=a", other, "--prediction", source).stderr
    (tmp_path / "expected.txt").write_bytes(b"\xff\xfe")
    wrong = run(*arguments, "--prediction", tmp_path / "expected.txt")
    assert wrong.exit_code == 1
    assert wrong.stderr.endswith(
        "expected.txt is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte\n"
    )
    (tmp_path / "expected.txt").write_bytes(b"")
    empty = run(*arguments, "--prediction", tmp_path / "expected.txt")
    assert empty.stdout == plain.stdout
    assert "expected.txt is empty, so nothing can be drafted from it; leave it out\n" in empty.stderr
    for path, reason in (("missing.txt", "No such file or directory"), (".", "Is a directory")):
        wrong = run(*arguments, "--prediction", tmp_path / path)
        assert wrong.exit_code == 2
        assert wrong.stderr.endswith(f"{tmp_path / path}': {reason}\n")


def test_the_prompt_comes_from_stdin(run: Run, built: Path) -> None:
    given = run("generate", built, "--prompt", "def add(a):\n", "--max-new-tokens", 8)
    piped = run("generate", built, "--prompt", "-", "--max-new-tokens", 8, input="def add(a):\n")
    assert piped.stdout == given.stdout


def test_chat_messages_come_from_a_file(run: Run, built: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    chat = run("generate", built, "--messages", path, "--max-new-tokens", 8)
    rendered = run("generate", built, "--prompt", "<user>hi<assistant>", "--max-new-tokens", 8)
    assert chat.exit_code == 0
    assert chat.stdout == rendered.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--prompt", ""),
        ("--prompt", "a b c d " * 100),
        ("--prompt", "\udcff"),
        ("--prompt", "x", "--temperature", -1),
        ("--prompt", "x", "--temperature", "nan"),
        ("--prompt", "x", "--temperature", "inf"),
        ("--prompt", "x", "--top-k", -3),
        ("--prompt", "x", "--top-p", 0),
        ("--prompt", "x", "--top-p", 1.5),
        ("--prompt", "x", "--min-p", 1.5),
        ("--prompt", "x", "--min-p", "nan"),
        ("--prompt", "x", "--repetition-penalty", 0),
        ("--prompt", "x", "--presence-penalty", 3),
        ("--prompt", "x", "--frequency-penalty", -3),
        ("--prompt", "x", "--logit-bias", "3=101"),
        ("--prompt", "x", "--logit-bias", "3=nan"),
        ("--prompt", "x", "--logit-bias", "1000000=1"),
        ("--prompt", "x", "--ban-token", -1),
        ("--prompt", "x", "--min-new-tokens", -1),
        ("--prompt", "x", "--drafter", "oracle"),
        ("--prompt", "x", "--seed", -(2**63) - 1),
        ("--prompt", "x", "--max-new-tokens", 0),
        ("--prompt", "x", "--num-draft-tokens", 9),
        ("--prompt", "x", "--stop", ""),
        ("--prompt", "x", "--engine", "cuda"),
    ],
)
def test_requests_that_are_refused(options: tuple[object, ...], run: Run, built: Path) -> None:
    check(
        cause(run("generate", built, *options)),
        code=("context_length_exceeded", "invalid_value", "unknown_engine"),
        field=[*options, "banned_tokens"],
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--messages", "/dev/null"),
        ("--threads", "-1"),
        ("--top-k", "many"),
        ("--ban-token", "x"),
        ("--logit-bias", "3"),
        ("--logit-bias", "x=1"),
        ("--logit-bias", "3=much"),
        ("--logit-bias", "1.5=1"),
        ("--logit-bias", "3=1", "--logit-bias", "3=2"),
        ("--verification", "blocks"),
    ],
)
def test_usage_errors(options: tuple[str, ...], run: Run, built: Path) -> None:
    error(run("generate", built), 2)
    error(run("generate", built, "--prompt", "x", *options), 2)


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (lambda b: flip(b / "graphs" / "draft.weights"), "draft.weights was changed after the build"),
    "missing file": (lambda b: (b / "graphs" / "target-ort.onnx").unlink(), "target-ort.onnx is missing"),
    "no manifest": (lambda b: (b / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "manifest no JSON": (lambda b: (b / MANIFEST).write_text("{"), "cannot be read as JSON"),
    "unknown key": (lambda b: edit(b, lambda m: m.update(colour="red")), "unknown key 'colour'"),
    "newer schema": (lambda b: edit(b, lambda m: m.update(schema_version=99)), "has schema version 99"),
    "older schema": (
        lambda b: edit(b, lambda m: m.update(schema_version=1)),
        "has schema version 1, this specexport reads 7 to 10; build the",
    ),
    "escaping path": (
        lambda b: edit(b, lambda m: m["files"].update({"../x": {"bytes": 1, "sha256": ""}})),
        "lies outside the bundle",
    ),
    "no bundle": (shutil.rmtree, "does not exist; check the path"),
}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize(
    "command", [("generate", "--prompt", "x"), ("inspect",), ("verify",), ("compile", "--engine", "tensorrt-rtx")]
)
def test_a_harmed_bundle(harm: str, command: tuple[str, ...], run: Run, bundle: Path) -> None:
    change, message = HARM[harm]
    change(bundle)
    result = run(command[0], bundle, *command[1:])
    assert message in (last_line if command[0] == "compile" else error)(result)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[CompileOptions]:
    """Plans of four bytes, for what is not about compiling; the options that each was given."""
    pytest.importorskip("tensorrt_rtx")
    from specexport.editing import compile as module

    given: list[CompileOptions] = []

    def compile_graph(lib: Any, job: Any, plan: Path, options: CompileOptions, *rest: Any) -> None:
        given.append(options)
        plan.write_bytes(b"plan")

    monkeypatch.setattr(module, "compile_graph", compile_graph)
    return given


def test_compile(run: Run, compilable: Path, tmp_path: Path, quick: list[CompileOptions]) -> None:
    bundle = shutil.copytree(compilable, tmp_path / "copy.bundle")
    result = run(
        "compile", bundle, "--engine", "tensorrt-rtx", "--compute-capability", "8.9", "--compute-capability", "12.0"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{bundle}\n"
    assert set(quick) == {CompileOptions(("8.9", "12.0"))}
    version = quick and json.loads((bundle / MANIFEST).read_text())["plans"][0]["version"]
    assert result.stderr.splitlines() == [
        "check the bundle",
        "compile tensorrt-rtx",
        f"16 plans by tensorrt-rtx {version}, 0.0 MB",
    ]
    text = run("inspect", bundle).stdout
    assert f"plans      tensorrt-rtx {version}: 16, 0.0 MB, for compute capability 8.9, 12.0\n" in text
    assert "engines    tensorrt-rtx, onnxruntime; fp32" in text
    assert "spans 64" in text
    assert len(json.loads(run("inspect", bundle, "--json").stdout)["plans"]) == 16
    assert run("compile", bundle, "--engine", "tensorrt-rtx").exit_code == 0
    assert "16, 0.0 MB, for its usual GPUs\n" in run("inspect", bundle).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tensorrt",), "the package tensorrt is not installed; install it with: pip install 'specexport[tensorrt]'"),
        (
            ("onnxruntime",),
            "there is nothing to compile for 'onnxruntime'; plans are made for tensorrt and tensorrt-rtx",
        ),
        (("cuda",), "there is nothing to compile for 'cuda'; plans are made for tensorrt and tensorrt-rtx"),
        (("tensorrt-rtx", "--compute-capability", "x"), "--compute-capability is x; it must look like 8.9"),
        (("tensorrt-rtx", "--compute-capability", "9.0"), "cannot compile for compute capability 9.0; it has 7.5, "),
        (("tensorrt-rtx", "--hardware-compatible"), "TensorRT-RTX does not support --hardware-compatible"),
        (("tensorrt-rtx", "--version-compatible"), "TensorRT-RTX does not support --version-compatible"),
        (("tensorrt-rtx", "--weight-streaming"), "TensorRT-RTX does not support --weight-streaming"),
        (("tensorrt-rtx", "--timing-cache", "times"), "TensorRT-RTX does not support --timing-cache"),
    ],
)
def test_what_cannot_be_compiled(
    options: tuple[str, ...], message: str, run: Run, bundle: Path, quick: list[CompileOptions]
) -> None:
    before = (bundle / MANIFEST).read_bytes()
    assert message in last_line(run("compile", bundle, "--engine", *options))
    assert quick == []
    assert (bundle / MANIFEST).read_bytes() == before


def test_inspect(run: Run, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(built, tmp_path, monkeypatch)
    assert "up to 64 tokens" in run("inspect", "org/tiny").stdout
    found = json.loads(run("inspect", built, "--json").stdout)
    assert found["contract"]["capacity"] == 64
    assert found["memory"]["target"]["cache"] == 2 * 2 * 64 * 2 * 8 * 4
    assert "graphs/target.weights" not in run("inspect", built).stdout
    text = run("inspect", built, "--files").stdout
    digest = found["files"]["graphs/target.weights"]["sha256"]
    for part in ("up to 64 tokens", "LlamaForCausalLM", "proved     target ort", "graphs/target.weights", digest[:16]):
        assert part in text


def test_verify_passes_on_a_good_bundle(run: Run, built: Path, tmp_path: Path) -> None:
    result = run("verify", built, "--max-new-tokens", 8)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "passed")
    prompts = tmp_path / "prompts.jsonl"
    chat = json.dumps({"route": "chat", "messages": [{"role": "user", "content": "the quick"}]})
    prompts.write_text(f'{{"prompt": "def add"}}\n\n{chat}\n')
    found = json.loads(run("verify", built, "--prompts", prompts, "--max-new-tokens", 8, "--json").stdout)
    assert found["passed"]
    assert found["prompts"] == found["equal_at_same_width"] == 2


def test_verify_speculates_whatever_the_policy(run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specexport.runtime import load as module

    loaded: list[Any] = []
    real = module.load
    monkeypatch.setattr(module, "load", lambda *given, **more: loaded.append(real(*given, **more)) or loaded[-1])
    opened, off = Bundle.open(bundle), RoutePolicy("off", "draft", 0, "fixed", (0.5,), None)
    policy = Policy(POLICY_VERSION, bundle_identity(opened), "onnxruntime", "", 0.0, 0.9, off, {})
    write_decision(opened, policy, POLICY)
    assert module.load(bundle).decisions.policy is not None
    found = json.loads(run("verify", bundle, "--max-new-tokens", 8, "--json").stdout)
    assert found["passed"]
    assert found["drafted"] > 0
    assert loaded[-1].decisions.policy is None


def test_verify_fails_on_a_consistent_bundle_that_is_wrong(run: Run, bundle: Path) -> None:
    """Other weights, and digests made to fit them."""
    from specexport.bundle import sha256

    weights = bundle / "graphs" / "target.weights"
    content = bytearray(weights.read_bytes())
    content[1000:3000] = bytes(2000)
    weights.write_bytes(content)
    edit(bundle, lambda manifest: manifest["files"]["graphs/target.weights"].update(sha256=sha256(weights)))
    result = run("verify", bundle, "--max-new-tokens", 4)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("FAILED")
    found = run("verify", bundle, "--max-new-tokens", 4, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["passed"] is False


def test_doctor(run: Run) -> None:
    assert run("doctor").stdout.startswith("yes  onnxruntime: onnxruntime ")
    found = json.loads(run("doctor", "--json").stdout)
    assert found["onnxruntime"]["usable"] is True
    engines = ["onnxruntime", "onnxruntime-cuda", "tensorrt", "tensorrt-rtx"]
    assert list(found) == [*engines, "tensorrt-lean", "build", "compile for tensorrt", "compile for tensorrt-rtx"]
    assert found["compile for tensorrt"]["remedy"] == "install it with: pip install 'specexport[tensorrt]'"
    assert all(entry["usable"] or entry["remedy"] for entry in found.values())


def test_doctor_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("onnxruntime", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    lines = run("doctor").stdout.splitlines()
    assert lines[0] == "no   onnxruntime: onnxruntime is not installed; pip install 'specexport[onnxruntime]'"
    assert any(line.startswith("no   build: building needs onnxruntime>=") for line in lines)
    lean = "the package tensorrt_lean is not installed; install it with: pip install 'specexport[tensorrt-lean]'"
    assert f"no   tensorrt-lean: {lean}" in lines
    assert lines[-1].startswith("no   compile for tensorrt-rtx: tensorrt_rtx is installed as a placeholder")
