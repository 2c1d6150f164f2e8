"""What onnx's own tools say about a bundle's graphs."""

from __future__ import annotations

from pathlib import Path

import onnx


def graphs_of(bundle: Path) -> list[Path]:
    return sorted((bundle / "graphs").rglob("*.onnx"))


def check_graphs(bundle: Path) -> None:
    """Raises what onnx raises for a graph that it cannot load, weights and all, or finds invalid."""
    for path in graphs_of(bundle):
        onnx.load(path)
        onnx.checker.check_model(path)
