"""Hybrids that an engine or an option cannot have are refused by their configs, before anything is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from specexport.errors import ParameterError, UnsupportedModelError
from specexport.exporter.build import build
from specexport.exporter.checkpoints.config import keeps_states
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.options import BuildOptions
from specexport.exporter.tracing.trace import probe_cache
from support.hybrids import KINDS, MORE, OPTIONS, SHARED, save_hybrid
from support.pair import Notes, Pair
from support.refusals import refused
from support.tiny import save_checkpoint


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    return save_hybrid(tmp_path / "hybrid", "convolution")


def attempt(target: Path, draft: Path | None, output: Path, **options: Any) -> Notes:
    """What a build says on the way; raises as it does."""
    progress = Notes()
    given = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=output.parent / "cache", **options)
    try:
        build(str(target), draft and str(draft), output, given, progress)
    finally:
        assert [label for label, _ in progress.stages] in ([], ["check the pair"]), "nothing may be exported"
    return progress


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in MORE | OPTIONS | SHARED)]
)
def test_the_config_alone_says_what_the_model_shows(kind: str, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(str(save_hybrid(tmp_path / "checkpoint", kind)))
    assert keeps_states(checkpoint.config)
    assert any(layer.states for layer in probe_cache(checkpoint.load("fp32")))


@pytest.mark.parametrize("given", [dict(max_seq_len=19), dict(max_seq_len=-1), dict(max_seq_len=20, tree_rows=1)])
def test_a_capacity_that_is_too_small_is_refused_before_a_checkpoint_is_looked_for(given: dict[str, int]) -> None:
    with refused(ParameterError, given["max_seq_len"], field="max_seq_len"):
        BuildOptions(**given)  # type: ignore[arg-type]


def test_trees_are_refused_before_an_export(hybrid: Path, pair: Pair, tmp_path: Path) -> None:
    with refused(UnsupportedModelError, "--tree-rows", "Lfm2ForCausalLM"):
        attempt(hybrid, pair.draft, tmp_path / "out.bundle", tree_rows=4)


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    "options",
    [
        dict(engines=("onnxruntime-cuda",), precision="bf16"),
        dict(engines=("tensorrt", "onnxruntime-cuda"), precision="bf16"),
        dict(engines=("tensorrt",), tensorrt_version="10.3"),
    ],
    ids=["cuda", "both", "old TensorRT"],
)
def test_engines_are_refused_before_an_export(options: dict[str, Any], role: str, hybrid: Path, tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "other")
    models = (hybrid, other) if role == "target" else (other, hybrid)
    with refused(UnsupportedModelError, "Lfm2ForCausalLM"):
        attempt(*models, tmp_path / "out.bundle", **options)
