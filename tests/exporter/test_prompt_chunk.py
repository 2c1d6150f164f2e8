"""How wide the prefill passes of mixtures are."""

from __future__ import annotations

from typing import Any

import pytest
from specexport.errors import OutputError
from specexport.exporter import build
from specexport.exporter import memory as chunks
from specexport.exporter import memory as memory_check
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.memory import copied_weights, prompt_chunk
from specexport.exporter.options import BuildOptions
from support.refusals import refused
from support.tiny import LLAMA, save_model
from transformers import AutoConfig

# Of gate and up together: twice 48 outputs of 32 inputs, for two experts a row.
COPIED = 2 * 96 * 32


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("mixture")
    save_model(folder, "olmoe", config=LLAMA | dict(num_experts=8, num_experts_per_tok=2))
    return find_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("olmoe", dict(num_experts=8, num_experts_per_tok=2), COPIED),
        ("mixtral", dict(num_local_experts=4, num_experts_per_tok=3), COPIED // 2 * 3),
        ("qwen3_moe", dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24), COPIED // 2),
        ("llama", dict(), 0),
    ],
)
def test_what_a_row_copies(family: str, config: dict[str, Any], expected: int) -> None:
    assert copied_weights(AutoConfig.for_model(family, **LLAMA | config)) == expected


@pytest.mark.parametrize(
    ("precision", "engines", "rows", "expected"),
    [
        ("int8", ("onnxruntime",), 40, 40),
        ("int4", ("onnxruntime",), 40, 40),
        ("fp32", ("onnxruntime",), 40, 10),  # four bytes a weight
        ("int8", ("tensorrt-rtx",), 40, 20),  # restored in half precision
        ("int8", ("onnxruntime",), 9999, 256),
        ("int8", ("onnxruntime",), 1, 5),  # no less than verification
    ],
)
def test_the_default_chunk_holds_the_copies(
    mixture: Checkpoint, precision: str, engines: tuple[str, ...], rows: int, expected: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(chunks, "MAX_BYTES", rows * COPIED)
    options = BuildOptions(precision=precision, engines=engines)
    assert prompt_chunk({"target": mixture}, options) == expected
    assert build._contract(build._Models({"target": mixture}, None, ()), options).prompt_chunk == min(expected, 128)


def test_a_chunk_whose_copies_do_not_fit_is_refused(mixture: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    options = BuildOptions(prompt_chunk=100, precision="int8")
    needed = memory_check.BASE + 100 * 4 * COPIED  # the proof copies restored weights
    monkeypatch.setattr(memory_check, "available", lambda: needed)
    assert build._contract(build._Models({"target": mixture}, None, ()), options).prompt_chunk == 100
    monkeypatch.setattr(memory_check, "available", lambda: needed - 1)
    with refused(OutputError, "--prompt-chunk", code="out_of_memory"):
        build._contract(build._Models({"target": mixture}, None, ()), options)
