"""Programs are traced a second time only where they have something to decompose; the graphs are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from specexport.exporter.tracing import decompose
from specexport.exporter.tracing.onnx_export import export_graph
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

WEIGHT = torch.randn(4, 4)


def as_it_is(x: Tensor) -> Tensor:
    return functional.softmax(functional.linear(x, WEIGHT) @ x.transpose(1, 2), -1)


def reshaped(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(1, -1) * x.view(1, -1)


def cast(x: Tensor) -> Tensor:
    return (x.to(torch.int32).to(torch.float32).to(x.dtype) + torch.tensor(0.5)).to("cpu")


def of_bits(x: Tensor) -> Tensor:
    return ((x > 0) & (x < 1) | (x < -1)).float()


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(x * 2, 0.5, training=False)


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :, 0] = x[:, :, 1]
    return y


def moved(x: Tensor) -> Tensor:
    return x.movedim(1, -1)


def decomposed(x: Tensor) -> Tensor:
    return torch.special.log_ndtr(x.clamp(-1, 1))


def composite(x: Tensor) -> Tensor:
    return functional.batch_norm(x.transpose(1, 2), torch.ones(4), torch.ones(4))


def mapped(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row * 2)(x)


def copied(x: Tensor) -> Tensor:
    return x[:, :, :1].expand(1, -1, 4).to(torch.float32, copy=True).view(1, -1)


def in_order(x: Tensor) -> Tensor:
    return x.transpose(1, 2).to(torch.float64, memory_format=torch.contiguous_format).view(1, -1)


SIMPLE = [as_it_is, reshaped, cast, of_bits, dropped]
OTHERS = [in_place, moved, decomposed, composite, mapped, copied, in_order]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """Programs that were traced a second time."""
    seen, run = list[ExportedProgram](), decompose._trace_again

    def trace(program: ExportedProgram, *table: Any, **options: Any) -> ExportedProgram:
        seen.append(program)
        return run(program, *table, **options)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", run)  # which an export sets to `_trace_again`
    monkeypatch.setattr(decompose, "_trace_again", trace)
    return seen


def export(function: Callable[[Tensor], Tensor]) -> ir.Model:
    x = torch.zeros(1, 3, 4)
    dynamic = {"x": {1: Dim("width", min=1, max=64)}}
    return export_graph(nn.Identity(), lambda given: (function(given["x"]),), {"x": x}, ["y"], dynamic, "ort")


def run(graph: ir.Model, x: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x.numpy()})[0]


def check(graph: ir.Model, function: Callable[[Tensor], Tensor]) -> None:
    for width in (1, 5):
        x = 3 * torch.randn(1, width, 4)
        found, expected = run(graph, x), function(x).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", SIMPLE)
def test_simple_programs_are_traced_once(function: Callable[[Tensor], Tensor], traces: list[ExportedProgram]) -> None:
    graph = export(function)
    assert traces == []
    check(graph, function)


@pytest.mark.parametrize("function", OTHERS)
def test_others_are_decomposed(function: Callable[[Tensor], Tensor], traces: list[ExportedProgram]) -> None:
    graph = export(function)
    assert len(traces) == 1
    check(graph, function)


def test_elsewhere_torch_decomposes_as_ever() -> None:
    export(as_it_is)
    assert ExportedProgram.run_decompositions is decompose._trace_again
