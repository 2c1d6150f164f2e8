"""Kernels that TensorRT-RTX's real builder makes of models, counted: it needs no GPU, and nothing is run.

Its compiler is a proxy of TensorRT's. A launch costs a GPU a microsecond or more, and copies of keys and values cost
bandwidth. So these figures may fall, and are then lowered here; they must not rise unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from specexport.bundle import CacheLayer, Contract, Precision, Role
from specexport.engines.tensorrt.api import library
from specexport.engines.tensorrt.compile import CompileOptions, Profile, _builder, _config, model_profiles
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.passes.accumulate import accumulate_in_fp32
from specexport.exporter.passes.optimize import optimize, save
from specexport.exporter.tracing.trace import probe_cache, trace
from support.rtx_builder import Kernel, build, kernels
from transformers import AutoConfig, AutoModelForCausalLM


def test_what_every_build_asks_for() -> None:
    lib = library("tensorrt_rtx")
    config = _config(lib, _builder(lib), CompileOptions())
    asked = {"TF32": False, "STRICT_NANS": True, "REQUIRE_USER_ALLOCATION": True}
    assert {name: config.get_flag(getattr(lib.trt.BuilderFlag, name)) for name in asked} == asked


PAIR = Path(__file__).parents[3] / "examples" / "demo_pair"
CONTRACT = Contract(capacity=1024, max_draft_tokens=4, prompt_chunk=64, precision="fp16")
SIZES: dict[str, Any] = dict(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=1024,
)
Graphs = Callable[..., dict[str, Path]]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """By dialect, of `target`, `draft` (the demo pair's) or a model type, with products as they were traced."""

    @cache
    def graphs(name: str, precision: Precision = "fp16") -> dict[str, Path]:
        if name in ("target", "draft"):
            model = find_checkpoint(str(PAIR / name)).load(precision)
        else:
            config = AutoConfig.for_model(name, **SIZES)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval()
        layers: tuple[CacheLayer, ...] = probe_cache(model)
        dialects: tuple[Dialect, ...] = ("onnx", "rows") if name in ("target", "llama") else ("onnx",)
        traced = {str(each): trace(model, layers, each, replace(CONTRACT, precision=precision)) for each in dialects}
        for dialect in dialects:
            optimize(traced[dialect], dialect)
        folder = tmp_path_factory.mktemp(name)
        return {dialect: folder / path for dialect, path in save(traced, folder, name)[0].items()}

    return graphs


def in_fp32(path: Path) -> Path:
    """The graph as it is exported, over the same weights."""
    made = path.with_stem(f"{path.stem}-in-fp32")
    if not made.exists():
        model = ir.load(path)
        accumulate_in_fp32(model)
        ir.save(model, made)
    return made


def profile(role: Role, width: int) -> Profile:
    return model_profiles(CONTRACT, role)[CONTRACT.widths.index(width)]


def copies(found: list[Kernel]) -> int:
    """Kernels that read the cache and neither write rows into it nor attend."""
    reading = [kernel for kernel in found if any(name.startswith(("past.", "present.")) for name in kernel.reads)]
    return sum("Scat" not in kernel.name and "mha" not in kernel.name for kernel in reading)


# Of two layers, the embedding and the output: a draft's pass of width 1, and a verify pass.
FAMILIES = {"llama": (20, 28), "qwen3": (24, 32), "gemma3_text": (28, 32)}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_of_a_family(family: str, graphs: Graphs) -> None:
    path = in_fp32(graphs(family)["onnx"])
    single, verify = kernels(path, profile("draft", 1)), kernels(path, profile("target", 5))
    most_single, most_verify = FAMILIES[family]
    assert len(single) <= most_single
    assert len(verify) <= most_verify
    assert sum("gemv_mha" in kernel.name for kernel in single) == 2
    # Attention reads the cache where it lies at width 1 alone: docs/gpu.md, "Spans and widths".
    assert (copies(single), copies(verify)) == (0, 4)


@pytest.mark.nightly
def test_kernels_of_the_demo_pair(graphs: Graphs) -> None:
    """A sampled k = 4 round, without its rules and copies: verify pass, first draft pass and three more."""
    target, draft = (in_fp32(graphs(role)["onnx"]) for role in ("target", "draft"))
    single = kernels(draft, profile("draft", 1))
    round_ = [*kernels(target, profile("target", 5)), *kernels(draft, profile("draft", 2)), *single * 3]
    assert len(round_) <= 155
    assert copies(single) == 0


@pytest.mark.slow
def test_products_add_up_in_fp32_by_the_same_kernels(graphs: Graphs) -> None:
    """`Cast, MatMul, Cast` is no cast of weights, keys or values."""
    for path in graphs("llama").values():
        before, after = (kernels(graph, profile("target", 5)) for graph in (path, in_fp32(path)))
        assert [kernel.name for kernel in before] == [kernel.name for kernel in after]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("role", "precision", "dialect"),
    [
        ("target", "fp32", "onnx"),
        ("target", "fp16", "rows"),
        ("draft", "bf16", "onnx"),
    ],
)
def test_sizes_of_the_demo_pairs_plans(role: Role, precision: Precision, dialect: Dialect, graphs: Graphs) -> None:
    """A target's weights are stored once, a draft's in two layouts."""
    path = in_fp32(graphs(role, precision)[dialect])
    contract = replace(CONTRACT, precision=precision)
    plan, listener = build(path, "SM89", model_profiles(contract, role))
    assert plan is not None, listener.errors
    weights = path.with_name(f"{role}.weights").stat().st_size
    # and the kernels of each profile, whatever the model's size; a bit more in the dialect `rows`
    assert weights < plan < (1 if role == "target" else 2) * weights + 6e6 * len(contract.widths)
