"""The proofs of `scripts/gpu_check` on the GPU of this host, with every engine that it can run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpucheck.command import GPU_ENGINES
from gpucheck.presets import QUICK
from gpucheck.proofs import prove
from gpucheck.session_under_test import open_subject
from gpucheck.shapes import SHAPES
from specexport.engines.cuda.driver import find_gpu
from specexport.engines.registry import engine_module
from specexport.errors import EngineError
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions

pytestmark = pytest.mark.gpu


@pytest.fixture(params=GPU_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Skipped with the reason where this host cannot run it."""
    name = str(request.param)
    try:
        find_gpu()
    except EngineError as error:
        pytest.skip(str(error))
    found = engine_module(name).availability()
    if not found.usable:
        pytest.skip(f"{name}: {found.detail}; {found.remedy}")
    return name


def test_the_engine_gives_the_models_own_output(engine: str, tmp_path: Path) -> None:
    shape = replace(SHAPES["tiny"], capacity=1024, max_draft_tokens=3)
    shape.write(tmp_path)
    checkpoints = shape.checkpoints(tmp_path)
    options = BuildOptions(
        shape.capacity,
        shape.max_draft_tokens,
        precision="fp16",
        draft_precision="fp16",
        engines=(engine,),
        cache=tmp_path / "cache",
    )
    build(str(checkpoints["target"]), str(checkpoints["draft"]), tmp_path / "tiny.bundle", options)
    subject = open_subject(tmp_path / "tiny.bundle", engine, checkpoints)
    with subject.session as session:
        findings = list(prove(subject, shape.prompts(session, QUICK.prompts), QUICK, shape.walks, shape.sampled))
    assert [finding for finding in findings if not finding.passed] == []
    assert len(findings) > 8
