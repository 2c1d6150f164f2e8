"""Builds with quantized weights, from checkpoints to generated text."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import specexport
import torch
from safetensors.torch import load_file, save_file
from specexport.bundle import Bundle
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import CheckpointError, ParameterError
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.runtime.describe import describe, render
from specexport.runtime.proofs.verify import verify_session
from support.doubles import proofs_of
from support.pair import Pair
from support.refusals import refused
from support.standard_tools import check_graphs

pytestmark = pytest.mark.slow


def made(pair: Pair, output: Path, cache: Path, **options: Any) -> Path:
    given: dict[str, Any] = dict(max_seq_len=64, prompt_chunk=16, cache=cache) | options
    build(str(pair.target), str(pair.draft), output, BuildOptions(**given))
    return output


@pytest.fixture(scope="module")
def mixed(pair: Pair, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target in int8, the draft in int4. Not to be changed."""
    return made(pair, tmp_path_factory.mktemp("mixed") / "tiny.bundle", cache, precision="int8", draft_precision="int4")


def test_the_bundle_says_what_was_done_and_what_it_cost(mixed: Path, built: Path) -> None:
    bundle = Bundle.open(mixed)
    manifest = bundle.manifest
    assert manifest.drafts
    assert [model.format for model in manifest.pair.values()] == ["int8", "int4"]
    assert manifest.contract.precision == "fp32"
    assert [list(model.graphs) for model in manifest.pair.values()] == [["kernels"], ["kernels"]]
    for model in manifest.pair.values():
        assert model.fidelity is not None
        assert model.fidelity.tokens > 200
        assert 0 < model.fidelity.divergence < 0.5
    text = render(describe(bundle))
    assert "up to 64 tokens, " in text  # the kernels keep no row free
    assert "in int8, cache" in text
    assert "before quantization" in text
    plain = Bundle.open(built).manifest
    assert manifest.files[manifest.target.weights].bytes < 0.5 * plain.files[plain.target.weights].bytes


def test_what_it_generates_is_the_quantized_targets_own(mixed: Path) -> None:
    session = specexport.load(mixed)
    for prompt in ("def add(a, b):", "the quick brown"):
        ours = session.generate(prompt, max_new_tokens=24, stop_token_ids=())
        plain = session.generate(prompt, max_new_tokens=24, stop_token_ids=(), speculate=False)
        assert ours.tokens == plain.tokens
    assert verify_session(session, None, 8).passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precisions", "formats"),
    [
        (dict(precision="int8", draft_precision="int4"), ("int8", "int4")),
        (dict(precision="fp8", draft_precision="fp16"), ("fp8", "float")),
        (dict(precision="fp16"), ("float", "int4")),
    ],
)
def test_for_tensorrt_they_are_proved_here_and_compiled(
    precisions: dict[str, str], formats: tuple[str, str], pair: Pair, cache: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    options = dict(engines=("tensorrt-rtx",), compiling=CompileOptions(("8.9",)), max_draft_tokens=1) | precisions
    bundle = Bundle.open(made(pair, tmp_path / "rtx.bundle", cache, **options))
    manifest = bundle.manifest
    assert manifest.drafts
    assert (manifest.target.format, manifest.drafts[0].model.format, manifest.contract.precision) == (*formats, "fp16")
    assert {proof.dialect for proof in proofs_of(manifest)} == {"onnx"}
    assert {plan.graph for plan in manifest.plans} >= {"graphs/target-onnx.onnx", "graphs/draft-onnx.onnx"}
    assert manifest.longest == manifest.contract.capacity  # only ONNX Runtime's attention writes a row more
    check_graphs(bundle.root)


def test_weights_that_are_no_numbers_are_named(pair: Pair, cache: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(pair.target, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with refused(CheckpointError, "model.layers.1.mlp.up_proj.weight"):
        made(Pair(broken, pair.draft), tmp_path / "out.bundle", cache, precision="int8")


def test_calibration_prompts_that_are_too_few(pair: Pair, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "def add(a, b):"}\n')
    with refused(ParameterError, field="calibration_prompts"):
        made(pair, tmp_path / "out.bundle", cache, precision="int8", calibration_texts=tmp_path / "prompts.jsonl")
