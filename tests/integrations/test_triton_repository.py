"""The repository that `specexport triton-repository` writes, and what runs out of it over a fake of Triton."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import specexport
from click.testing import CliRunner, Result
from specexport.bundle import Bundle
from specexport.cli import main
from specexport.errors import BundleError
from specexport.integrations.triton import repository
from support.ended import cause
from support.fake_triton import FakeTriton, Request, TritonModelException
from support.refusals import check, refused

Write = Callable[..., Result]


@pytest.fixture
def write(tmp_path: Path, built: Path) -> Write:
    """Writes `models` of the tiny bundle, unless told otherwise."""

    def write(*arguments: object, bundle: Path = built, output: object = tmp_path / "models") -> Result:
        command = ["triton-repository", bundle, "-o", output, *arguments]
        return CliRunner().invoke(main, list(map(str, command)))

    return write


def config(models: Path, name: str) -> str:
    return (models / name / "config.pbtxt").read_text(encoding="utf-8")


def test_the_repository_has_two_models_and_one_bundle(write: Write, tmp_path: Path, built: Path) -> None:
    done = write()
    models = tmp_path / "models"
    assert (done.exit_code, done.stdout) == (0, f"{models}\n")
    start = f"tritonserver --model-repository {models} --disable-auto-complete-config"
    assert done.stderr == f"models tiny and tiny_whole\nnext: {start}\n"
    files = {str(path.relative_to(models)) for path in models.rglob("*") if path.is_file()}
    of_bundle = {f"tiny/bundle/{path.relative_to(built)}" for path in built.rglob("*") if path.is_file()}
    own = {f"{name}/{file}" for name in ("tiny", "tiny_whole") for file in ("config.pbtxt", "1/model.py")}
    assert files == of_bundle | own
    assert Bundle.open(models / "tiny/bundle").manifest == Bundle.open(built).manifest
    assert "decoupled: true" in config(models, "tiny")
    assert "decoupled: false" in config(models, "tiny_whole")
    assert (models / "tiny/bundle/manifest.json").stat().st_nlink == 1


def test_options_reach_the_configuration(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    asked = ["--name", "a.b", "--instances", 3, "--threads", 2, "--engine", "onnxruntime", "--prompt-cache-mib", 64]
    assert write(*asked, "--queue", 5, "--queue-timeout", 1.5, "--python-path", folder).exit_code == 0
    streams, whole = config(tmp_path / "models", "a.b"), config(tmp_path / "models", "a.b_whole")
    for text in (streams, whole):
        assert "{ count: 3 kind: KIND_CPU }" in text
        assert "max_queue_size: 5\n" in text
        assert "default_timeout_microseconds: 1500000\n" in text
    for key, value in (("threads", "2"), ("engine", "onnxruntime"), ("prompt_cache_mib", "64")):
        assert f'key: "{key}" value {{ string_value: "{value}" }}' in streams
        assert key not in whole
    assert 'key: "of" value { string_value: "a.b" }' in whole
    for name in ("a.b", "a.b_whole"):
        assert (tmp_path / "models" / name / "1/python_path").read_text() == f"{folder}\n"


def test_hard_links_take_no_room(write: Write, tmp_path: Path, bundle: Path) -> None:
    assert write("--hard-links", bundle=bundle).exit_code == 0
    weights = "graphs/target.weights"
    assert (bundle / weights).samefile(tmp_path / "models/copy/bundle" / weights)
    triton = FakeTriton()
    triton.load(tmp_path / "models", "copy")
    [[*_, last]] = triton.ask("copy", Request("def add", {"max_new_tokens": 4}))
    assert last.texts["finish_reason"] == "length"


def test_the_written_models_answer_as_a_session(write: Write, tmp_path: Path, built: Path) -> None:
    write("--threads", 1)
    triton = FakeTriton()
    loaded = [triton.load(tmp_path / "models", name) for name in ("tiny", "tiny_whole")]
    with specexport.load(built, threads=1) as session:
        expected = session.generate("def add", max_new_tokens=12)
    [[answer]] = triton.ask("tiny_whole", Request("def add", {"max_new_tokens": 12}))
    assert answer.texts["text_output"] == expected.text
    for model in loaded:
        model.finalize()


def test_an_instance_runs_on_its_gpu(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def load(bundle: Path, **options: Any) -> None:
        asked.append({"bundle": bundle, **options})
        raise BundleError("enough")

    monkeypatch.setattr("specexport.integrations.triton.streams.load", load)
    write("--prompt-cache-mib", 64)
    with pytest.raises(TritonModelException, match=r"^enough$"):
        FakeTriton().load(tmp_path / "models", "tiny", kind="GPU", device=3)
    bundle, budget = tmp_path / "models/tiny/bundle", 64 << 20
    assert asked == [{"bundle": bundle, "engine": None, "threads": 0, "device": 3, "prompt_cache_bytes": budget}]


def test_a_damaged_bundle_is_refused_when_it_is_loaded(write: Write, tmp_path: Path) -> None:
    write()
    (tmp_path / "models/tiny/bundle/graphs/target.weights").write_bytes(b"")
    with refused(TritonModelException, "135168", code="file_changed"):
        FakeTriton().load(tmp_path / "models", "tiny")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--name", "a/b"),
        ("--name", ".."),
        ("--name", "x" * 200),
        ("--engine", "tensorrt"),
        ("--gpu", 0),
        ("--gpu", 0, "--gpu", 0),
        ("--gpu", 0, "--instances", 2),
        ("--python-path", "nowhere"),
        ("--queue", 0),
        ("--queue", 2**32),
        ("--queue-timeout", 0),
        ("--queue-timeout", "nan"),
        ("--queue-timeout", "inf"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    write: Write, tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    check(cause(write(*arguments)), field=[*arguments, "gpus"])
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_stays(write: Write, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    check(cause(write()), "--output", code="output_exists")
    assert list((tmp_path / "models").iterdir()) == []
    (tmp_path / "file").write_text("")
    check(cause(write(output=tmp_path / "file" / "models")), "--output")


def test_a_failure_leaves_nothing(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, destination: Path) -> None:
        raise OSError(28, "No space left on device", str(destination))

    monkeypatch.setattr(repository, "clone_or_copy", full)
    check(cause(write()), code="disk_full")
    assert list(tmp_path.iterdir()) == []


def refusal(result: Result) -> str:
    """The one line of a command that failed."""
    assert result.exit_code == 1, (result.exception, result.stderr)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return result.stderr.removesuffix("\n")
