"""Programs are traced a second time only where they have something to decompose; the graphs are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from specexport.exporter.tracing import decompose
from specexport.exporter.tracing.onnx_export import export_graph
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


def as_it_is(x: Tensor) -> Tensor:
    return torch.nn.functional.softmax(x @ x.transpose(1, 2), -1)


def reshaped(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(1, -1) * x.view(1, -1)


def cast(x: Tensor) -> Tensor:
    return (x.to(torch.float64).to(torch.float32).to(x.dtype) + torch.tensor(0.5)).to("cpu")


def of_bits(x: Tensor) -> Tensor:
    return ((x > 0) & (x < 1) | (x < -1)).float()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :, 0] = x[:, :, 1]
    return y


def moved(x: Tensor) -> Tensor:
    return x.movedim(1, -1)


def decomposed(x: Tensor) -> Tensor:
    return torch.special.log_ndtr(x)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """Programs that were traced a second time."""
    seen, run = list[ExportedProgram](), decompose._trace_again
    monkeypatch.setattr(
        decompose, "_trace_again", lambda program, *how, **more: (seen.append(program), run(program, *how, **more))[1]
    )
    return seen


def export(function: Callable[[Tensor], Tensor]) -> ir.Model:
    x = torch.zeros(1, 3, 4)
    dynamic = {"x": {1: Dim("width", min=1, max=64)}}
    return export_graph(nn.Identity(), lambda given: (function(given["x"]),), {"x": x}, ["y"], dynamic, "ort")


def run(graph: ir.Model, x: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x.numpy()})[0]


@pytest.mark.parametrize("function", [as_it_is, reshaped, cast, of_bits])
def test_simple_programs_are_traced_once(function: Callable[[Tensor], Tensor], traces: list[ExportedProgram]) -> None:
    graph = export(function)
    assert traces == []
    for width in (1, 5):
        x = torch.randn(1, width, 4)
        np.testing.assert_allclose(run(graph, x), function(x), atol=1e-6)


@pytest.mark.parametrize("function", [in_place, moved, decomposed])
def test_others_are_decomposed(function: Callable[[Tensor], Tensor], traces: list[ExportedProgram]) -> None:
    graph, x = export(function), torch.rand(1, 5, 4)
    assert len(traces) == 1
    np.testing.assert_allclose(run(graph, x), function(x), atol=1e-6)


def test_elsewhere_torch_decomposes_as_ever() -> None:
    export(as_it_is)
    assert ExportedProgram.run_decompositions is decompose._trace_again
