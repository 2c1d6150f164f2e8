"""The command line: data on stdout, the rest on stderr, every mistake in one line. Exit code 2 where the command line
is wrong, 1 where the work failed.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from specexport.bundle import MANIFEST, Bundle
from specexport.cli import main
from specexport.cli.group import command_line
from specexport.engines.catalogue import ENGINES, LIBRARIES
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import CheckpointError, EngineError, OutputError, ParameterError, SpecExportError
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity
from specexport.runtime.policy.routes import POLICY, POLICY_VERSION, Policy, RoutePolicy
from support.ended import cause
from support.hub_cache import hub_with
from support.pair import Pair
from support.refusals import check

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    def run(*arguments: object, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input, catch_exceptions=True)

    return run


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
        "\nbuilt      for onnxruntime; fp32\n",
        "\nproved     every graph agrees with its Hugging Face model\n",
        f"\nnext:\n    specexport chat {tmp_path / 'out.bundle'} ",
    ):
        assert line in result.stderr
    *stages, in_all = re.findall(r"^\S.* (\d+\.\d) s$", result.stderr, re.MULTILINE)
    assert sum(map(float, stages)) == pytest.approx(float(in_all))
    for line in ("import packages ", "hash the weights ", "everything else "):
        assert line in result.stderr
    check(cause(build()), "--output", "--force", code="output_exists")
    assert "calibrated" not in result.stderr
    (tmp_path / "out.bundle/policy.json").write_text("{}")
    again = build("--force")
    assert (again.exit_code, "was calibrated; calibrate the new one" in again.stderr) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["tensorrt", "tensorrt-rtx"])
def test_a_build_for_elsewhere_says_where_to_go_on(
    build: Callable[..., Result], quick: list[CompileOptions], tmp_path: Path, engine: str
) -> None:
    """There is no GPU here: a bundle without plans is compiled on the device, one with plans is used there."""
    versions = {"tensorrt-version": "10.3"} if engine == "tensorrt" else {}
    result = build(engine=engine, **versions)
    assert result.exit_code == 0, result.stderr
    place = tmp_path / "out.bundle"
    first, *lines = result.stderr[result.stderr.index("\nnext") :].split("\n    ")
    if engine == "tensorrt":
        assert first == "\nnext, when the bundle is copied to the device:"
        assert lines == [f"specexport compile {place} --engine tensorrt    # on the device\n"]
    else:
        assert first.startswith("\nnext, on a host with the GPU (none here that ")
        assert any(line.startswith(f"specexport calibrate {place} --prompts FILE") for line in lines)


def test_build_names_every_draft_and_inspect_its_proof(
    build: Callable[..., Result], pair: Pair, run: Run, tmp_path: Path
) -> None:
    check(cause(build("--draft", "lookup", draft=pair.draft), 2), "lookup", field="draft")
    result = build("--draft", f"one={pair.draft}", draft=f"two={pair.draft}")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^draft      one: .*\n(.*\n)*draft      two: ", result.stderr, re.MULTILINE)
    shown = run("inspect", str(tmp_path / "out.bundle")).stdout
    assert re.search(r"^proved     draft one kernels.*\n(.*\n)*proved     draft two kernels", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "kind", "code", "field"),
    [
        (dict(target="no/such/folder"), CheckpointError, "checkpoint_not_found", None),
        (dict(max_draft_tokens=0), ParameterError, None, "max_draft_tokens"),
        (dict(precision="int3"), ParameterError, None, "precision"),
        (dict(engine="cuda"), EngineError, "unknown_engine", "engine"),
        (dict(engine="tensorrt", tensorrt_version="10.2"), EngineError, None, None),
        (dict(engine="tensorrt", compute_capability="89"), ParameterError, None, "compute_capability"),
        (dict(output="/dev/null/out"), OutputError, None, "output"),
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
    error = cause(build(**options), 2 if field or code else 1)
    assert type(error) is kind
    facts = [value for value in options.values() if isinstance(value, str) and field is None]
    check(error, *(fact[:100] for fact in facts[-1:]), code=code, field=field)
    assert list(tmp_path.iterdir()) == []


def last_line(result: Result) -> str:
    """Of a command whose stages are on stderr too."""
    assert result.exit_code in (1, 2), (result.exception, result.stderr)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("Error: ") == 1
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


def test_an_output_that_cannot_be_written_is_one_line(built: Path) -> None:
    command = f"{sys.executable} -m specexport inspect {built} > /dev/full"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        1,
        "Error: the output cannot be written: No space left on device\n",
    )


def test_an_interrupt_ends_any_command_in_one_line(run: Run, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specexport.runtime.describe.describe", stopped)
    result = run("inspect", built)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Interrupted\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "nan"),
        ("--top-p", 1.5),
        ("--repetition-penalty", 0),
        ("--logit-bias", "3=101"),
        ("--max-new-tokens", 0),
        ("--num-draft-tokens", 9),
        ("--drafter", "oracle"),
        ("--engine", "cuda"),
    ],
)
def test_a_value_that_an_option_cannot_have(options: tuple[str, object], run: Run, built: Path) -> None:
    """Exit code 2, and the message names the option, not the parameter."""
    result = run("generate", built, "--prompt", "x", *options)
    check(cause(result, 2), code=("invalid_value", "unknown_engine"), field=options)
    if options[0] != "--engine":
        assert result.stderr.startswith(f"Error: {options[0]}")
        assert "_" not in result.stderr


@pytest.mark.parametrize(
    "mistake",
    [
        *(
            f"{command} nothing.bundle"
            for command in ("inspect", "verify", "push o/n --private", "generate --prompt x")
        ),
        *(
            f"{command} {{bundle}} --prompts {file}"
            for command in ("bench", "verify", "calibrate")
            for file in (".", "p")
        ),
        *(f"generate {{bundle}} --messages {file}" for file in ("nothing.json", ".", "p")),
        *(f"generate {{bundle}} --chat x --chat-template {file}" for file in ("nothing", "p")),
        "generate {bundle} --prompt x --prediction p",
        "generate {bundle} --prompt x --json-schema p",
        "generate {bundle} --prompt x --engine tensorrt",
        "bench {bundle} --prompts one --max-new-tokens 9 --journal .",
        *(f"calibrate {{bundle}} --prompts one --report {file}" for file in (".", "no/x.md", "x.html", "")),
        *(f"build --output out --target {model}" for model in ("./no", "/no/m", "no.gguf", ".", "p", "")),
        *(f"build --target {{target}} --output {place}" for place in (".", "p/out", "")),
        "push {bundle} name",
        "serve {bundle} --port {taken}",
        "serve {bundle} --uds no/socket",
        "serve {bundle} --api-key-file p",
        "build --target {target} --output out --cache p",
        "inspect ",
        "generate {bundle} --chat ",
        "generate {bundle}",
        *(
            f"generate {{bundle}} --prompt x {more}"
            for more in ("y", "--chat y", "--messages p", "--threads -1", "--top-k many", "--ban-token x")
        ),
        *(f"generate {{bundle}} --prompt x --logit-bias {bias}" for bias in ("3", "1.5=1", "3=1 --logit-bias 3=2")),
        "generate {bundle} --prompt x --verification blocks",
        "generate {bundle} --chat x --device -1",
        "generate {bundle} --chat x --nope",
        "build --output out",
        "--nope",
        "nope",
        "completion",
    ],
)
def test_a_wrong_command_line_has_one_exit_code(
    mistake: str, run: Run, built: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the command, and whether click sees the mistake or the work would. p: no UTF-8, and no folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specexport.cli.serve._log_to_stderr", lambda: None)
    Path("p").write_bytes(b"\xff")
    Path("one").write_text('{"route": "a", "prompt": "x"}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        facts = {"bundle": built, "target": pair.target, "taken": taken.getsockname()[1]}
        result = run(*(part.format(**facts) for part in mistake.split(" ")))
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "empty" in result.stderr or not mistake.endswith(" ")
    assert {path.name for path in tmp_path.iterdir()} <= {"p", "one"}, "nothing is made"


def flip(bundle: Path) -> None:
    weights = bundle / "graphs" / "draft.weights"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message", "command"),
    [
        (flip, "draft.weights was changed after the build", ("generate", "--prompt", "x")),
        (flip, "draft.weights was changed after the build", ("verify",)),
        (lambda b: (b / MANIFEST).write_text("{"), "cannot be read as JSON", ("inspect",)),
        (shutil.rmtree, "does not exist; check the path", ("compile", "--engine", "tensorrt-rtx")),
    ],
)
def test_a_harmed_bundle(
    harm: Callable[[Path], object], message: str, command: tuple[str, ...], run: Run, bundle: Path
) -> None:
    harm(bundle)
    result = run(command[0], bundle, *command[1:])
    assert message in last_line(result)
    assert len(result.stderr.splitlines()) == 1


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
        f"2 plans by tensorrt-rtx {version}, 0.0 MB",
    ]
    text = run("inspect", bundle).stdout
    assert f"plans      tensorrt-rtx {version}: 2, 0.0 MB, for compute capability 8.9, 12.0\n" in text
    assert "engines    tensorrt-rtx, onnxruntime; fp32" in text
    assert "spans 64" in text
    assert len(json.loads(run("inspect", bundle, "--json").stdout)["plans"]) == 2
    assert run("compile", bundle, "--engine", "tensorrt-rtx").exit_code == 0
    assert "2, 0.0 MB, for its usual GPUs\n" in run("inspect", bundle).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tensorrt",), "the package tensorrt is not installed; install it with: pip install 'specexport[tensorrt]'"),
        (("tensorrt-rtx", "--compute-capability", "9.0"), "cannot compile for compute capability 9.0; it has 7.5, "),
        (("onnxruntime",), "tensorrt-rtx"),
        (("tensorrt-rtx", "--version-compatible"), "TensorRT-RTX does not support --version-compatible"),
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
    assert found["memory"]["target"]["cache"] == 2 * 2 * 64 * 2 * 16 * 4  # heads of 8 take a vector of 16
    assert found["files"]["graphs/target.weights"]["sha256"]
    for part in ("up to 64 tokens", "LlamaForCausalLM", "proved     target kernels"):
        assert part in run("inspect", built).stdout


def test_verify_passes_on_a_good_bundle(run: Run, built: Path, tmp_path: Path) -> None:
    result = run("verify", built, "--max-new-tokens", 8)
    assert (result.exit_code, result.stdout.splitlines()[-1], result.stderr) == (0, "passed", "")
    prompts = tmp_path / "prompts.jsonl"
    chat = json.dumps({"route": "chat", "messages": [{"role": "user", "content": "the quick"}]})
    prompts.write_text(f'{{"prompt": "def add"}}\n\n{chat}\n')
    found = json.loads(run("verify", built, "--prompts", prompts, "--max-new-tokens", 8, "--json").stdout)
    assert found["passed"]
    assert found["prompts"] == found["equal_at_same_width"] == 2


def test_verify_shows_its_steps_on_a_terminal(run: Run, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("verify", built, "--max-new-tokens", 8)
    shown = click.unstyle(result.stderr)
    for stage, steps in (("parity", 2), ("L1, L2", 8), ("L0", 1)):
        assert re.search(rf"{stage} +\S+ {steps}/{steps} ", shown)
    assert "passed" in result.stdout


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
    others = ["kernels", "tensorrt-lean", "build", *(f"compile for {name}" for name in LIBRARIES)]
    assert list(found) == [*ENGINES, *others]
    assert found["compile for tensorrt"]["remedy"] == "install it with: pip install 'specexport[tensorrt]'"
    assert all(entry["usable"] or entry["remedy"] for entry in found.values())


def test_doctor_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("onnxruntime", "tensorrt_rtx", "specexport_kernels"):
        monkeypatch.setitem(sys.modules, name, None)
    lines = run("doctor").stdout.splitlines()
    assert lines[0] == "no   onnxruntime: onnxruntime is not installed; pip install 'specexport[onnxruntime]'"
    assert any(line.startswith("no   build: building needs onnxruntime>=") for line in lines)
    kernels = "specexport-kernels is not installed; pip install ./kernels in a checkout of specexport, or its wheel"
    assert f"no   kernels: {kernels}" in lines
    lean = "the package tensorrt_lean is not installed; install it with: pip install 'specexport[tensorrt-lean]'"
    assert f"no   tensorrt-lean: {lean}" in lines
    assert lines[-1].startswith("no   compile for tensorrt-rtx: tensorrt_rtx is installed as a placeholder")


def test_a_command_keeps_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1" / "a b").mkdir(parents=True)
    given = ["build", "--target=/jo/t", "--draft", "n=~/d", "--draft=code=/jo/d", "--draft", "lr=1/a b", "-o./jo/x"]
    given += ["--precision", "int8", "--logit-bias", "3=-1.5", "--engine=onnxruntime", "--draft", "org/d"]
    assert command_line(given) == (
        "specexport build --target=t --draft n=d --draft=code=d --draft 'a b' -ox --precision int8 --logit-bias 3=-1.5 "
        "--engine=onnxruntime --draft org/d"
    )
