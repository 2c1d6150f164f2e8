"""A bundle loaded on a fake TensorRT: real graphs, run by ONNX Runtime behind the fake's contexts."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from specexport.bundle import Bundle, FileEntry, Plan
from specexport.engines.base import Engine, RoundNoise
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.cuda.round_graph import DeviceRounds
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.compile import hidden_profiles, model_profiles
from specexport.engines.tensorrt.engine import load_bundle
from specexport.runtime.session import Session

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
    plans, files = [], dict(manifest.files)
    for graph, shapes in graphs.items():
        file = f"engines/{engine}/{Path(graph).stem}.plan"
        bundle.path(file).parent.mkdir(parents=True, exist_ok=True)
        content = plan(bundle.path(graph), shapes, version, compute_capabilities, version_compatible)
        bundle.path(file).write_bytes(content)
        files[file] = FileEntry(len(content), sha256(content).hexdigest())
        plans.append(Plan(engine, graph, file, version, compute_capabilities, version_compatible))
    return replace(bundle, manifest=replace(manifest, plans=tuple(plans), files=files, engines=(engine,)))


def fake_library(device: FakeDevice, version: str = "10.16.1") -> Library:
    return Library("tensorrt", FakeTensorRT(device, version))


def load_fake(
    bundle: Bundle, device: FakeDevice, dialect: str = "onnx", version: str = "10.16.1"
) -> tuple[Bundle, Engine]:
    bundle = with_plans(bundle, dialect, version)
    return bundle, load_bundle(ENGINE, bundle, fake_library(device, version), device)


class OnDevice:
    """A bundle twice: sessions whose rounds run on a device, and on the host. at_load: the device's log until then."""

    def __init__(self, bundle: Bundle, host: Engine, dialect: str, version: str, policy: bool = True) -> None:
        self.device = FakeDevice()
        self.bundle, self.engine = load_fake(bundle, self.device, dialect, version)
        self.at_load = [*self.device.log]
        self.session = Session(self.bundle, self.engine, policy=policy)
        self.host = Session(bundle, host, policy=policy)

    @property
    def rounds(self) -> DeviceRounds:
        assert isinstance(self.engine.rounds, DeviceRounds)
        return self.engine.rounds

    @property
    def decoders(self) -> list[DeviceDecoder]:
        found = [self.engine.target, self.engine.draft.decoder]
        return [decoder for decoder in found if isinstance(decoder, DeviceDecoder)]

    def fresh(self) -> None:
        self.session.reset()
        self.host.reset()
        self.device.log.clear()


def noise(k: int, verification: str = "block") -> RoundNoise | None:
    if verification == "greedy":
        return None
    rng, sampling = np.random.default_rng(0), np.array([1.0, 0, 1.0, 0], np.float32)
    return RoundNoise(verification, sampling, rng.random(k, np.float32), rng.random(k + 1, np.float32))


# Of each rule, the kernel that ends it.
LAST_KERNELS = ("select_best", "accept_best", "accept_drawn")


def executed(log: list[str], prefix: str = "captured ") -> list[str]:
    """What ran: a model's graph, with its widths and span, and of a rule its last kernel."""
    found = []
    for line in log:
        rest = line.removeprefix(prefix).split(" ", 3)[1:]
        if line.startswith(f"{prefix}execute "):
            found.append(f"{rest[0]} {rest[2]}")
        elif line.startswith(f"{prefix}kernel ") and rest[0] in LAST_KERNELS:
            found.append(rest[0])
    return found
