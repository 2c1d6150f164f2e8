"""Builds with quantized weights, from checkpoints to generated text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import specexport
import torch
from safetensors.torch import load_file, save_file
from specexport.bundle import Bundle, ModelSpec, Role
from specexport.bundle.auto_precision import PRECISION
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import CheckpointError, ParameterError, ProofError
from specexport.exporter import auto, export_model
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.exporter.proving.prove import prove
from specexport.runtime.describe import describe, render
from specexport.runtime.proofs.verify import verify_session
from support.doubles import proofs_of
from support.pair import Pair
from support.refusals import refused
from support.standard_tools import check_graphs


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
    assert [list(model.graphs) for model in manifest.pair.values()] == [["ort"], ["ort"]]
    for model in manifest.pair.values():
        assert model.fidelity is not None
        assert model.fidelity.tokens > 200
        assert 0 < model.fidelity.divergence < 0.5
    text = render(describe(bundle))
    assert "up to 63 tokens (64 less one that quantized passes keep free), " in text
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


@pytest.mark.nightly
def test_auto_leaves_what_moves_too_far(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And finds out before it makes a graph of it."""

    def never(*_: Any) -> int:
        raise AssertionError("a graph was made of a format that moves too far")

    monkeypatch.setattr(export_model, "quantize", never)
    cache = tmp_path / "cache"
    build(
        str(pair.draft),
        None,
        tmp_path / "auto.bundle",
        BuildOptions(64, prompt_chunk=16, cache=cache, precision="auto", max_divergence=0),
    )
    manifest = Bundle.open(tmp_path / "auto.bundle").manifest
    assert (manifest.target.format, set(manifest.target.graphs), manifest.drafts) == ("float", {"ort"}, ())
    table = json.loads((tmp_path / "auto.bundle" / PRECISION).read_text())
    assert [row["target"] for row in table["candidates"]] == ["float"]
    assert [line.partition(": ")[0] for line in table["left_out"]] == ["target in int8", "target in int4"]
    assert all("it is 0." in line and "nats from the exact model, 0 are allowed" in line for line in table["left_out"])


@pytest.mark.nightly
def test_auto_goes_on_without_a_format_whose_graphs_are_wrong(
    pair: Pair, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(place: Path, role: Role, spec: ModelSpec, *rest: Any) -> ModelSpec:
        if (role, spec.format) in wrong:
            raise ProofError("logits are off")
        return prove(place, role, spec, *rest)

    monkeypatch.setattr(auto, "prove", failing)
    options = BuildOptions(64, prompt_chunk=16, cache=cache, precision="auto", max_divergence=10.0)
    wrong = {("target", "int4"), ("draft", "int8")}
    build(str(pair.target), str(pair.draft), tmp_path / "auto.bundle", options)
    table = json.loads((tmp_path / "auto.bundle" / PRECISION).read_text())
    assert [(row["target"], row["draft"]) for row in table["candidates"]] == [
        ("float", "float"),
        ("float", "int4"),
        ("int8", "float"),
        ("int8", "int4"),
    ]
    assert table["left_out"] == ["draft in int8: logits are off", "target in int4: logits are off"]
    assert "left out: target in int4: logits are off" in render(describe(Bundle.open(tmp_path / "auto.bundle")))
    wrong = {("target", "float")}
    with pytest.raises(ProofError):
        build(str(pair.target), str(pair.draft), tmp_path / "none.bundle", options)


@pytest.mark.nightly
def test_auto_measures_every_pair_and_takes_one_that_keeps_the_quality(pair: Pair, cache: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(made(pair, tmp_path / "auto.bundle", cache, precision="auto", max_divergence=10.0))
    table = json.loads((bundle.root / PRECISION).read_text())
    formats = ("float", "int8", "int4")
    assert {(row["target"], row["draft"]) for row in table["candidates"]} == {
        (target, draft) for target in formats for draft in formats
    }
    assert all(
        row["plain"] > 0 and row["speculative"] > 0 and row["acceptance_length"] >= 1 for row in table["candidates"]
    )
    fastest = max(table["candidates"], key=lambda row: row["speculative"])
    manifest = bundle.manifest
    assert manifest.drafts
    assert (
        (table["target"], table["draft"])
        == (fastest["target"], fastest["draft"])
        == (manifest.target.format, manifest.drafts[0].model.format)
    )
    assert PRECISION in manifest.files
    shown = [line for line in render(describe(bundle)).splitlines() if "<- taken" in line]
    assert [line.split()[:3] for line in shown] == [
        [form.replace("float", "fp32") for form in (fastest["target"], "+", fastest["draft"])]
    ]
    assert not list(tmp_path.glob(".*"))  # nothing is left of the others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precisions", "formats"),
    [
        (dict(precision="int8", draft_precision="int4"), ("int8", "int4")),
        (dict(precision="fp8", draft_precision="fp16"), ("fp8", "float")),
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


@pytest.mark.parametrize(
    "lines",
    [
        "",
        '{"prompt": "def add(a, b):"}\n',
        "words\n",
        '{"route": "a", "prompt": [1, 2, 3]}\n',
    ],
)
def test_calibration_prompts_that_are_too_few(lines: str, pair: Pair, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(lines)
    with refused(ParameterError, field=(None, "calibration_prompts", "prompt", "prompts")):
        made(pair, tmp_path / "out.bundle", cache, precision="int8", calibration_texts=tmp_path / "prompts.jsonl")
