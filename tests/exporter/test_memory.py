from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from specexport.errors import OutputError
from specexport.exporter import build, free_memory, memory
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.export_model import ModelExport
from specexport.exporter.free_memory import available
from specexport.exporter.memory import copied_weights, prompt_chunk, quantized_bytes, require_memory
from specexport.exporter.options import BuildOptions, CalibrationTexts
from specexport.exporter.recipe_choice import Quantizing
from support.refusals import refused
from support.tiny import LLAMA, save_model
from transformers import AutoConfig


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 8 GB free."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    7812500 kB\n")
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "GROUP", tmp_path)
    return tmp_path


def test_the_host_or_its_group_whichever_is_less(host: Path) -> None:
    assert available() == 8_000_000_000
    (host / "memory.current").write_text("1000\n")
    (host / "memory.stat").write_text("anon 900\nfile 500\ninactive_file 10\nactive_file 20\n")
    (host / "memory.max").write_text("max\n")
    assert available() == 8_000_000_000
    (host / "memory.max").write_text("6000\n")
    assert available() == 5030


def test_what_fits_with_its_weights_on_the_disk_and_what_is_refused_before_it_starts(host: Path) -> None:
    assert not require_memory(1_300_000_000, "fp32", False, 4096)
    assert not require_memory(700_000_000, "fp32", True, 4096)
    assert require_memory(1_300_000_000, "fp32", True, 4096)  # the weights' 5.2 GB on the disk, 6.5 in memory
    with refused(OutputError, "--precision", "1.5", code="out_of_memory"):
        require_memory(1_500_000_000, "fp32", True, 4096)
    assert not require_memory(700_000_000, "fp16", True, 4096)
    assert require_memory(700_000_000, "fp16", True, 4096, folded=True)
    with refused(OutputError, "0.9", code="out_of_memory"):
        require_memory(900_000_000, "fp16", True, 4096, folded=True)
    with refused(OutputError, "2.0", code="out_of_memory"):
        require_memory(2_000_000_000, "fp32", False, 4096)
    with refused(OutputError, "4.0", code="out_of_memory"):
        require_memory(4_000_000_000, "bf16", False, 4096)
    require_memory(2_000_000_000, "fp16", False, 4096)
    with refused(OutputError, "2.0", code="out_of_memory"):
        require_memory(2_000_000_000, "fp16", False, 4096, beside=4_000_000_000)


@pytest.mark.parametrize(("layers", "times"), [(1, 1), (4, 2)])
def test_a_tied_table_counts_twice_where_it_may_be_untied(layers: int, times: int, tmp_path: Path) -> None:
    """It is not where it has more than a third of the weights."""
    config, texts = LLAMA | dict(num_hidden_layers=layers, tie_word_embeddings=True), CalibrationTexts(())
    checkpoint = find_checkpoint(str(save_model(tmp_path, config=config)))
    table, weights = LLAMA["vocab_size"] * LLAMA["hidden_size"], checkpoint.fp32_bytes // 4
    counted = {
        form: ModelExport(checkpoint, "target", (), Quantizing(form, "onnxruntime", texts)).parameters
        for form in ("int8", "int4")
    }
    assert counted == {"int8": weights + (times - 1) * table, "int4": weights}


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


def test_experts_that_stay_wider_need_their_own_space() -> None:
    config = AutoConfig.for_model("olmoe", **LLAMA | dict(num_experts=8, num_experts_per_tok=2))
    experts = LLAMA["num_hidden_layers"] * 8 * 3 * 48 * 32
    of = {
        family: quantized_bytes(config, experts + 1000, "int4", family, "fp16")
        for family in ("onnxruntime", "onnxruntime-cuda", "tensorrt")
    }
    assert of == {
        "onnxruntime": int(experts * 1.1 + 900),
        "onnxruntime-cuda": experts * 2 + 900,
        "tensorrt": int((experts + 1000) * 0.9),
    }
    assert quantized_bytes(None, 1000, "int4", "onnxruntime-cuda", "fp16") == 900
    with_biases = AutoConfig.for_model("gpt_oss", **LLAMA | dict(num_local_experts=8, num_experts_per_tok=2))
    assert quantized_bytes(with_biases, 2 * experts, "int8", "onnxruntime", "fp32") > 1.1 * 2 * experts


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
    monkeypatch.setattr(memory, "MAX_BYTES", rows * COPIED)
    options = BuildOptions(precision=precision, engines=engines)
    assert prompt_chunk([("target", mixture)], options) == expected
    assert build._contract([ModelExport(mixture, "target", ())], options).prompt_chunk == min(expected, 128)


def test_a_chunk_whose_copies_do_not_fit_is_refused(mixture: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    options = BuildOptions(prompt_chunk=100, precision="int8")
    needed = free_memory.BASE + 100 * 4 * COPIED  # the proof copies restored weights
    monkeypatch.setattr(free_memory, "available", lambda: needed)
    assert build._contract([ModelExport(mixture, "target", ())], options).prompt_chunk == 100
    monkeypatch.setattr(free_memory, "available", lambda: needed - 1)
    with refused(OutputError, "--prompt-chunk", code="out_of_memory"):
        build._contract([ModelExport(mixture, "target", ())], options)
