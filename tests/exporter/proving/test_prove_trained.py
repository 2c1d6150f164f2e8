"""Right graphs of trained models pass; `test_prove_layers.py` damages those of small ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specexport.bundle import Contract, Format
from specexport.exporter.dialects import Dialect
from support.quantized import Quantized, load
from support.real import missing, save_smollm2
from torch import nn

DEMO = Path(__file__).parents[3] / "examples/demo_pair/target"
CONTRACT = Contract(capacity=160, max_draft_tokens=4, prompt_chunk=64, precision="fp32")
OUT = "layers.2.self_attn.o_proj"
FORMS: list[tuple[Format, Dialect]] = [
    ("int8", "ort"),
    ("int4", "ort"),
    ("int8", "onnx"),
    ("fp8", "onnx"),
    ("int4", "rows"),
]
Form = tuple[Format, Dialect]
Once = Callable[[str, Callable[[Path], object]], Path]


def quantized(checkpoint: Path, form: Form, folder: Path) -> Quantized:
    """Neither model has biases, so one layer gets some."""
    model = load(checkpoint)
    layer = model.get_submodule(f"model.{OUT}")
    torch.manual_seed(0)
    layer.bias = nn.Parameter(0.1 * torch.randn(layer.out_features), requires_grad=False)  # type: ignore[operator]
    return Quantized(folder, model, *form, CONTRACT, text=tuple(range(100, 400, 3)))


@pytest.fixture(scope="module", params=FORMS, ids="-".join)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    return quantized(DEMO, request.param, tmp_path_factory.mktemp("demo"))


# To save time: every format is tried on the demo pair.
@pytest.fixture(scope="module", params=FORMS[:1], ids="-".join)
def smollm2(request: pytest.FixtureRequest, once: Once, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    if lacking := missing():
        pytest.skip(f"needs {', '.join(lacking)}")
    return quantized(once("smollm2", save_smollm2), request.param, tmp_path_factory.mktemp("smollm2"))


def check_right(made: Quantized) -> None:
    proof = made.prove()
    assert proof.layer_error < 1
    assert proof.as_run
    assert proof.exact_error < 5e-4
    assert made.recorded.rounding > 0
    assert proof.rounded_divergence < 4 * made.recorded.rounding


@pytest.mark.nightly
def test_the_demo_target_passes(demo: Quantized) -> None:
    check_right(demo)


@pytest.mark.real
@pytest.mark.nightly
def test_smollm2_passes(smollm2: Quantized) -> None:
    check_right(smollm2)
