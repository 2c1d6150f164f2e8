from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import specexport
import torch
from specexport.bundle import Bundle, files
from specexport.engines.tensorrt.api import plans_of
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import EngineError, OutputError, ParameterError, ProofError
from specexport.exporter import build as build_module
from specexport.exporter.build import BuildReport, build
from specexport.exporter.bundle_files import write_text
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.options import BuildOptions
from support.doubles import proofs_of
from support.pair import Notes, Pair
from support.refusals import refused
from support.standard_tools import check_graphs
from support.tiny import make_tokenizer, save_checkpoint
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

EXPORTS = ("export target", "export draft")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out" / "tiny.bundle"


@pytest.fixture
def run(pair: Pair, cache: Path, built: Path, output: Path) -> Callable[..., BuildReport]:
    """Build with the stages of `built` at hand."""

    def run(
        target: Path = pair.target, draft: Path | None = pair.draft, progress: Any = None, **options: Any
    ) -> BuildReport:
        given = dict(max_seq_len=64, prompt_chunk=16, cache=cache) | options
        return build(str(target), draft and str(draft), output, BuildOptions(**given), progress)

    return run


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir()) if folder.parent.exists() else []


def test_a_bundle_says_what_it_is(built: Path, pair: Pair) -> None:
    manifest = Bundle.open(built).manifest
    assert (manifest.contract.capacity, manifest.contract.max_draft_tokens, manifest.contract.prompt_chunk) == (
        64,
        4,
        16,
    )
    assert (manifest.target.source, manifest.drafts[0].model.source) == (pair.target.name, pair.draft.name)
    assert (len(manifest.target.layers), len(manifest.drafts[0].model.layers)) == (2, 1)
    assert manifest.engines == ("onnxruntime",)
    assert manifest.text.stop_token_ids == (1,)
    assert [(proof.role, proof.dialect) for proof in proofs_of(manifest)] == [
        ("target", "kernels"),
        ("draft", "kernels"),
    ]
    assert set(manifest.target.graphs) == {"kernels"}  # nothing that no engine of the bundle runs
    assert all(proof.max_error < 1e-4 for proof in proofs_of(manifest))
    assert manifest.packages["torch"] == version("torch")  # without what __version__ of a CUDA build adds
    assert left(built) == [built.name]


def test_the_bundle_generates_what_hugging_face_generates(built: Path, pair: Pair) -> None:
    session = specexport.load(built)
    tokens = session.encode("def add(a, b):")
    model = AutoModelForCausalLM.from_pretrained(pair.target)
    expected = model.generate(
        torch.tensor([tokens]), do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=1
    )
    found = session.generate(tokens, max_new_tokens=20, stop_token_ids=())
    assert [*tokens, *found.tokens] == expected[0].tolist()


def test_a_repeated_build_reuses_its_stages(run: Callable[..., BuildReport]) -> None:
    progress = Notes()
    report = run(progress=progress)
    assert {time.label for time in report.times if time.reused} == set(EXPORTS)
    assert progress.notes == [f"{label}: reused from an earlier build" for label in EXPORTS]
    assert len([step for step in progress.steps if step.startswith("prove")]) == 2


def test_a_swapped_pair_is_built_with_a_warning(
    run: Callable[..., BuildReport], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(*args: Any) -> None:
        raise ProofError("far enough")

    monkeypatch.setattr(build_module, "export_model", enough)
    progress = Notes()
    with pytest.raises(ProofError):
        run(pair.draft, pair.target, progress)
    assert "Are the two swapped?" in progress.notes[0]


def test_too_small_a_disk_is_refused_beforehand(
    run: Callable[..., BuildReport], output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10, 0, 10))
    with refused(OutputError, "1", code="disk_full"):
        run(cache=tmp_path / "empty")
    assert left(output) == []
    with refused(OutputError, "1", code="disk_full"):
        run()  # finished stages are copied
    monkeypatch.setattr(files, "can_clone", lambda *_: True)
    run()  # unless they share their blocks with the bundle


@pytest.mark.parametrize("place", ["copy", "write_manifest"])
def test_a_disk_that_fills_up_leaves_nothing(
    place: str, run: Callable[..., BuildReport], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if place == "copy":
        monkeypatch.setattr(shutil, "copyfile", fail)
        monkeypatch.setattr(files, "_share", lambda *_: False)
    else:
        monkeypatch.setattr(build_module, place, fail)
    with refused(OutputError, code=("disk_full", "output_failed")):
        run()
    assert left(output) == []


@pytest.mark.parametrize(
    "options",
    [
        dict(max_draft_tokens=0),
        dict(max_draft_tokens=33),
        dict(prompt_chunk=0),
        dict(min_overlap=-0.1),
        dict(min_overlap=50),
        dict(min_overlap=float("nan")),
        dict(precision="fp4"),
        dict(precision="bf16"),
        dict(engines=()),
        dict(tensorrt_version="10.3"),
        dict(tensorrt_version="ten", engines=("tensorrt",)),
        dict(compiling=CompileOptions(version_compatible=True)),
        dict(max_seq_len=15),
        dict(max_seq_len=19),
        dict(max_seq_len=129),
    ],
)
def test_options_out_of_range(options: dict[str, Any], run: Callable[..., BuildReport], output: Path) -> None:
    with refused(
        ParameterError,
        field=[*options, "engine", "version_compatible"],
    ):
        run(**options)
    assert left(output) == []


@pytest.mark.nightly
def test_a_bundle_with_plans(run: Callable[..., BuildReport], output: Path) -> None:
    """Compiled by TensorRT-RTX behind the proof; what runs without a GPU runs as before."""
    pytest.importorskip("tensorrt_rtx")
    progress = Notes()
    report = run(engines=("onnxruntime", "tensorrt-rtx"), compiling=CompileOptions(("8.9", "12.0")), progress=progress)
    assert [time.label for time in report.times][-2:] == ["write", "compile tensorrt-rtx"]
    manifest = Bundle.open(output).manifest
    assert manifest == report.bundle.manifest
    assert manifest.engines == ("onnxruntime", "tensorrt-rtx")
    plans = plans_of(report.bundle, "tensorrt-rtx")
    assert set(plans) == {f"graphs/{role}-onnx.onnx" for role in ("target", "draft")}
    assert {plan.compute_capabilities for plan in plans.values()} == {("8.9", "12.0")}
    assert left(output) == [output.name]
    assert len(specexport.load(output).generate([5, 6, 7], max_new_tokens=5, stop_token_ids=()).tokens) == 5


@pytest.mark.slow
def test_a_bundle_for_a_device_with_tensorrt(run: Callable[..., BuildReport], pair: Pair, output: Path) -> None:
    """Made and proved where there is none: the graphs of both dialects, and what is left to do."""
    progress = Notes()
    report = run(target=pair.draft, draft=None, engines=("tensorrt",), tensorrt_version="10.3", progress=progress)
    manifest = report.bundle.manifest
    assert (manifest.engines, manifest.plans) == (("tensorrt",), ())
    assert set(manifest.target.graphs) == {"rows"} == {proof.dialect for proof in proofs_of(manifest)}
    assert any(note.endswith(f"run: specexport compile {output} --engine tensorrt") for note in progress.notes)
    check_graphs(output)
    with refused(EngineError, "plans", code="not_built_for_engine"):
        plans_of(report.bundle, "tensorrt")


@pytest.mark.slow
@pytest.mark.parametrize("wide", ["draft", "target"])
def test_vocabularies_padded_to_different_sizes(
    wide: str, run: Callable[..., BuildReport], output: Path, tmp_path: Path
) -> None:
    checkpoint = save_checkpoint(tmp_path / "wide", seed=3, num_hidden_layers=1, vocab_size=320)
    run(**{wide: checkpoint})
    session = specexport.load(output)
    assert {session.engine.target.vocab_size, session.engine.draft.decoder.vocab_size} == {288, 320}
    prompt = [5, 6, session.engine.target.vocab_size - 1]
    plain = session.generate(prompt, max_new_tokens=40, stop_token_ids=(), speculate=False)
    drafted = session.generate(prompt, max_new_tokens=40, stop_token_ids=(), drafter="model")
    assert drafted.tokens == plain.tokens
    sampled = session.generate(prompt, max_new_tokens=40, stop_token_ids=(), temperature=1.5, seed=1)
    assert max(sampled.tokens) < session.engine.target.vocab_size


def test_without_a_draft_there_is_one_model_and_its_own_output(run: Callable[..., BuildReport], output: Path) -> None:
    report = run(draft=None)
    assert report.warnings == ()
    manifest = report.bundle.manifest
    assert (manifest.drafts, list(manifest.models)) == ((), ["target"])
    assert not [name for name in manifest.files if name.startswith(("graphs/draft", "reference/draft"))]
    session = specexport.load(output)
    prompt = [5, 6, 7, 5, 6, 7, 5, 6]
    plain = session.generate(prompt, max_new_tokens=30, stop_token_ids=(), speculate=False)
    assert session.generate(prompt, max_new_tokens=30, stop_token_ids=()).tokens == plain.tokens


def test_truncation_and_padding_of_a_tokenizer_are_left_behind(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=16)
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "tokenizer.json").replace(tmp_path / "checkpoint/tokenizer.json")
    save_checkpoint(tmp_path / "model")
    for path in (tmp_path / "model").glob("*"):
        if not (tmp_path / "checkpoint" / path.name).exists():
            path.rename(tmp_path / "checkpoint" / path.name)
    checkpoint = find_checkpoint(str(tmp_path / "checkpoint"))
    written = tmp_path / "bundle"
    written.mkdir()
    text = write_text(checkpoint, written)
    prompt = "for item in items: print(item) and so on"
    assert (
        Tokenizer.from_file(str(written / text.tokenizer)).encode(prompt).ids
        == checkpoint.tokenizer(prompt)["input_ids"]
    )
