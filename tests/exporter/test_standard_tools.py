"""A bundle as it is written, the cache in its default place, opened by tools that are not ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from specexport.bundle import Bundle
from support.standard_tools import check_graphs, graphs_of

INSPECT = """
import sys
from polygraphy.tools import main
sys.exit(any([main(["inspect", "model", path]) for path in sys.argv[1:]]))
"""


def test_no_file_of_a_bundle_has_a_second_name(built: Path) -> None:
    assert {path.stat().st_nlink for path in built.rglob("*") if path.is_file()} == {1}


def test_onnx_loads_and_accepts_every_graph(built: Path) -> None:
    """Those of other engines and precisions are checked where they are built."""
    graphs = [path.relative_to(built).as_posix() for path in graphs_of(built)]
    manifest = Bundle.open(built).manifest
    listed = [graph for model in manifest.models.values() for graph in model.graphs.values()]
    assert graphs == sorted(listed)
    check_graphs(built)


def test_polygraphy_inspects_every_model(built: Path) -> None:
    pytest.importorskip("polygraphy")
    graphs = [str(path) for path in graphs_of(built)]
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", INSPECT, *graphs], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-500:] + found.stderr[-500:]
    assert found.stdout.count("==== ONNX Model ====") == len(graphs)
