"""What TensorRT-RTX compiled for the GPU, across starts: kept where it can be, and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from specexport.engines.cuda.driver import Gpu
from specexport.engines.tensorrt import api, rtx
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.plan import LoadedPlan
from specexport.engines.tensorrt.rtx import RuntimeCaches
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan

VERSION = "1.7.1"
HEADER = b"1.7.1 Fake GPU\n"
RULE = """<ir_version: 8, opset_import: ["": 18]>
rule (float[64] x) => (float[64] y) { y = Neg (x) }"""


@pytest.fixture
def plans(tmp_path: Path) -> dict[Path, str]:
    """Two plans and the digests of their contents."""
    onnx.save(onnx.parser.parse_model(RULE), tmp_path / "rule.onnx")
    onnx.save(onnx.parser.parse_model(RULE.replace("Neg", "Abs")), tmp_path / "other.onnx")
    for name in ("rule", "other"):
        (tmp_path / f"{name}.plan").write_bytes(plan(tmp_path / f"{name}.onnx", version=VERSION))
    return {tmp_path / "rule.plan": "a" * 64, tmp_path / "other.plan": "b" * 64}


class Start:
    """A process that loads both plans, runs them as far as it is told, and saves what was compiled."""

    def __init__(self, plans: dict[Path, str], folder: Path, gpu: str = "Fake GPU") -> None:
        device = FakeDevice(name=gpu)
        trt = FakeTensorRT(device, VERSION, rtx=True)
        self.caches = RuntimeCaches(trt, plans, folder)
        library = Library("tensorrt_rtx", trt)
        self.loaded = [LoadedPlan(library, file, device, self.caches.settings) for file in plans]
        places = {name: device.allocate(256, name) for name in ("x", "y")}
        scratch = device.allocate(4096, "scratch")
        self.runs: list[Callable[[], None]] = [loaded.bind(0, {}, places, scratch, {}) for loaded in self.loaded]
        self.known = [config.get_runtime_cache().serialize() for config in self.configs]

    @property
    def configs(self) -> list[Any]:
        return [loaded._context_argument for loaded in self.loaded]

    def warm_up(self) -> Start:
        for run in self.runs:
            run()
        return self


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches" / "tensorrt-rtx"


def test_what_was_compiled_is_kept_for_each_plan(plans: dict[Path, str], folder: Path) -> None:
    start = Start(plans, folder).warm_up()
    assert not folder.exists()
    start.caches.save()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        f"{'a' * 64}.cache": HEADER + b"rule\n",
        f"{'b' * 64}.cache": HEADER + b"other\n",
    }


@pytest.mark.parametrize("content", [b"", b"rubbish", b"1.6.0 Fake GPU\nrule\n", b"1.7.1 Another GPU\nrule\n"])
def test_one_that_is_foreign_is_passed_over_and_replaced(plans: dict[Path, str], folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    file = folder / f"{'a' * 64}.cache"
    file.write_bytes(content)
    start = Start(plans, folder)
    assert start.known[0] == HEADER
    start.warm_up().caches.save()
    assert file.read_bytes() == HEADER + b"rule\n"


def test_a_full_disk_leaves_the_cache_as_it_was(
    plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Start(plans, folder)
    first.runs[0]()
    first.caches.save()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    Start(plans, folder).warm_up().caches.save()
    monkeypatch.undo()
    assert Start(plans, folder).known == [HEADER + b"rule\n", HEADER]


def test_what_is_read_while_it_is_written_is_whole(
    plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes start at once: a cache appears by renaming."""
    seen: list[list[str]] = []
    replace = Path.replace
    monkeypatch.setattr(
        Path,
        "replace",
        lambda self, to: seen.append([file.name for file in folder.glob("*.cache")]) or replace(self, to),
    )
    Start(plans, folder).warm_up().caches.save()
    assert seen == [[], [f"{'a' * 64}.cache"]]
    assert sorted(file.name for file in folder.iterdir()) == [f"{'a' * 64}.cache", f"{'b' * 64}.cache"]


KNOWN = ["7.5", "8.9", "12.0"]


@pytest.mark.parametrize(
    ("capability", "known", "usable"),
    [((8, 9), KNOWN, True), ((9, 0), KNOWN, False), ((7, 0), KNOWN, False), ((13, 0), KNOWN, True), ((9, 0), [], True)],
)
def test_a_gpu_that_the_library_leaves_out_is_not_usable(
    capability: tuple[int, int], known: list[str], usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 1.7 leaves out Hopper: it compiles there, and refuses to load its own plans."""
    gpu = Gpu("Fake GPU", capability, "13.0", 1 << 30)
    monkeypatch.setattr(api, "find_gpu", lambda: gpu)
    monkeypatch.setattr(rtx, "library", lambda name: Library(name, FakeTensorRT(FakeDevice(), VERSION, rtx=True)))
    monkeypatch.setattr(rtx, "compute_capabilities", lambda lib: known)
    found = rtx.availability()
    assert found.usable == usable
    assert usable or "onnxruntime-cuda" in found.remedy
