"""The command line in processes of its own: what it imports, its exit codes, its pipes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.hidden_drafts import save_original, save_target
from support.pair import Pair


def python(
    script: str, *arguments: object, block: tuple[str, ...] = (), stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({block!r})); "
    command = [sys.executable, "-c", blocked + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, check=False)


MAIN = "from specexport.__main__ import main; main()"
CLI = "from specexport.cli import main; main(prog_name='specexport')"
HEAVY = (
    "torch",
    "transformers",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "numpy",
    "tokenizers",
    "safetensors",
    "rich",
)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("build", "--help"), ("compile", "--help"), ("generate", "--help")]
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    result = python(CLI, *arguments, block=HEAVY)
    assert (result.returncode, result.stderr) == (0, "")
    assert "specexport" in result.stdout


@pytest.mark.slow
def test_generate_needs_no_torch(built: Path) -> None:
    blocked = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "safetensors", "huggingface_hub")
    result = python(CLI, "generate", built, "--prompt", "def add", "--max-new-tokens", 4, "--json", block=blocked)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(json.loads(result.stdout)["tokens"]) == 4


def test_build_without_torch_says_which_extra_to_install(pair: Pair, tmp_path: Path) -> None:
    for missing in ("torch", "transformers"):
        result = python(
            CLI, "build", "--target", pair.target, "--draft", pair.draft, "-o", tmp_path / "out", block=(missing,)
        )
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1
        assert f"{missing}>=" in result.stderr
        assert "pip install 'specexport[export]'" in result.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            ("--precision", "int8", "--calibration-prompts", "missing.jsonl"),
            "missing.jsonl cannot be read: No such file",
        ),
        (("--engine", "cuda"), "there is no engine 'cuda'"),
        (("--precision", "int8", "--draft-precision", "int4"), "--draft-precision is int4; there is no --draft"),
        (("--target", "./missing"), "there is no folder ./missing"),
    ],
)
def test_a_wrong_option_is_refused_before_torch_is_imported(option: tuple[str, ...], message: str) -> None:
    script = (
        "import sys; from specexport.cli import main\n"
        "try: main(standalone_mode=False)\n"
        "except Exception as error:\n"
        "    heavy = ('torch', 'transformers', 'onnxscript')\n"
        "    print(error.message, [name for name in heavy if name in sys.modules])"
    )
    result = python(script, "build", "--target", "a", "--output", "b", *option)
    assert result.stdout.startswith(message), result.stderr
    assert result.stdout.endswith(" []\n")


def test_a_draft_that_cannot_be_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    target, head = save_target(tmp_path / "target"), save_original(tmp_path / "head", vocab_size=9)
    script = (
        "import sys; from specexport.cli import main\n"
        "for arguments in eval(sys.argv.pop()):\n"
        "    try: main(arguments, standalone_mode=False)\n"
        "    except Exception:\n"
        "        print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    build = ["build", "--target", str(target), "--output", str(tmp_path / "bundle"), "--draft"]
    calls = [[*build, str(head)], [*build, "mtp"]]
    result = python(script, calls)
    assert result.stdout == 2 * "[]\n", result.stderr


@pytest.mark.slow
def test_compile_needs_no_torch(compilable: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    bundle = Path(shutil.copytree(compilable, tmp_path / "copy.bundle"))
    blocked = (
        "torch",
        "transformers",
        "onnx",
        "onnx_ir",
        "onnxscript",
        "onnxruntime",
        "safetensors",
        "huggingface_hub",
    )
    quick = (
        "from specexport.editing import compile as module; "
        "module.compile_graph = lambda lib, graph, plan, *_: plan.write_bytes(b'plan'); "
    )
    result = python(quick + CLI, "compile", bundle, "--engine", "tensorrt-rtx", block=blocked)
    assert (result.returncode, result.stdout) == (0, f"{bundle}\n")
    assert result.stderr.startswith("check the bundle\ncompile tensorrt-rtx\n2 plans by tensorrt-rtx ")


@pytest.mark.slow
def test_running_without_an_engine_says_what_to_do(built: Path) -> None:
    result = python(CLI, "generate", built, "--prompt", "x", block=("onnxruntime",))
    assert result.returncode == 1
    assert result.stderr == (
        "Error: this host can run no engine that the bundle was built for: onnxruntime (onnxruntime is not installed; "
        "pip install 'specexport[onnxruntime]')\n"
    )


@pytest.mark.slow
def test_a_reader_that_goes_away(built: Path) -> None:
    command = f"{sys.executable} -c \"{CLI}\" generate {built} --prompt 'def add' --max-new-tokens 50 | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


def broken(folder: Path, package: str) -> str:
    """Code that puts a package before the installed one whose shared library is missing."""
    (folder / package).mkdir(parents=True)
    error = (
        f"ImportError('libx.so.1: cannot open shared object file\\nmore', name='{package}.native', path='native.so')"
    )
    (folder / package / "__init__.py").write_text(f"raise {error}\n")
    return f"import sys; sys.path.insert(0, {str(folder)!r}); "


@pytest.mark.slow
def test_an_engine_that_is_installed_but_broken(built: Path, tmp_path: Path) -> None:
    script = broken(tmp_path, "onnxruntime") + CLI
    reason = (
        "onnxruntime is installed, but cannot be imported: libx.so.1: cannot open shared object file; install it again"
    )
    assert python(script, "doctor").stdout.splitlines()[0] == f"no   onnxruntime: {reason}"
    result = python(script, "generate", built, "--prompt", "x", "--engine", "onnxruntime")
    assert (result.returncode, result.stderr) == (1, f"Error: engine onnxruntime: {reason}\n")


def test_threads_of_torch_wait_without_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user says otherwise."""
    script = "import atexit, os; atexit.register(lambda: print(os.environ['OMP_WAIT_POLICY'])); " + MAIN
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert python(script).stdout == "passive\n"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert python(script).stdout == "active\n"


@pytest.mark.slow
@pytest.mark.parametrize("level", ["1", "2"])
def test_a_bundle_runs_and_is_proved_in_an_optimized_python(
    level: str, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("generate", built, "--prompt", "def", "--max-new-tokens", 8, "--threads", 1, "--json")
    expected = json.loads(python(MAIN, *asked).stdout)["tokens"]
    monkeypatch.setenv("PYTHONOPTIMIZE", level)
    assert json.loads(python(MAIN, *asked).stdout)["tokens"] == expected
    assert python(MAIN, "verify", built, "--threads", 1).returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        ("build", "--target", "{model}", "-o", "{output}"),
        ("tune", "{bundle}", "--draft", "x", "--prompts", "{model}", "-o", "{output}"),
    ],
    ids=lambda command: command[0],
)
def test_what_loads_models_says_what_keeps_it_from_that(
    command: tuple[str, ...], built: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers reads docstrings when it is imported."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    places = dict(model=pair.target, bundle=built, output=tmp_path / "output")
    result = python(MAIN, *(part.format(**places) for part in command))
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: building needs docstrings")
    assert "PYTHONOPTIMIZE" in line
