"""A bundle loaded on a fake TensorRT: real graphs, run by ONNX Runtime behind the fake's contexts."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from specexport.bundle import Bundle, FileEntry, Plan
from specexport.engines.base import Engine
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.compile import hidden_profiles, model_profiles
from specexport.engines.tensorrt.engine import load_bundle

from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan

ENGINE = "tensorrt"


def with_plans(
    bundle: Bundle,
    dialect: str = "onnx",
    version: str = "10.16.1",
    engine: str = ENGINE,
    compute_capabilities: tuple[str, ...] = (),
    version_compatible: bool = False,
) -> Bundle:
    """The bundle with a fake plan of each graph that a round needs."""
    manifest = bundle.manifest
    contract, graphs = manifest.contract, {}
    for role, model in manifest.pair.items():
        reads = model.reads
        graphs[model.graphs[dialect]] = model_profiles(contract, role, reads.width if reads else 0)
        if reads is not None and reads.fuse:
            size = len(reads.taps) * manifest.target.tap_width
            graphs[reads.fuse[dialect]] = hidden_profiles(contract, size)
    graphs |= {rule.graph: () for rule in manifest.rules}
    plans, files = [], dict(manifest.files)
    for graph, shapes in graphs.items():
        file = f"engines/{engine}/{Path(graph).stem}.plan"
        bundle.path(file).parent.mkdir(parents=True, exist_ok=True)
        content = plan(bundle.path(graph), shapes, version, compute_capabilities, version_compatible)
        bundle.path(file).write_bytes(content)
        files[file] = FileEntry(len(content), sha256(content).hexdigest())
        plans.append(Plan(engine, graph, file, version, compute_capabilities, version_compatible, False))
    return replace(bundle, manifest=replace(manifest, plans=tuple(plans), files=files, engines=(engine,)))


def fake_library(device: FakeDevice, version: str = "10.16.1") -> Library:
    return Library("tensorrt", FakeTensorRT(device, version))


def load_fake(
    bundle: Bundle, device: FakeDevice, dialect: str = "onnx", version: str = "10.16.1"
) -> tuple[Bundle, Engine]:
    bundle = with_plans(bundle, dialect, version)
    return bundle, load_bundle(ENGINE, bundle, fake_library(device, version), device)
