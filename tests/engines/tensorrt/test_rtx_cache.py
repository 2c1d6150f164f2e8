"""What TensorRT-RTX compiled for the GPU, across starts: kept where it can be, and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from specexport.atomic import write_whole
from specexport.engines.tensorrt import rtx_cache
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.plan import LoadedPlan
from specexport.engines.tensorrt.rtx_cache import RuntimeCaches, default_folder
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan
from support.fake_tensorrt_types import (
    CudaGraphStrategy,
    DynamicShapesKernelSpecializationStrategy,
    ExecutionContextAllocationStrategy,
)

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
        self.runs: list[Callable[[], None]] = [loaded.bind(0, {}, places, scratch) for loaded in self.loaded]
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


def test_contexts_are_made_to_be_captured(plans: dict[Path, str], folder: Path) -> None:
    for config in Start(plans, folder).configs:
        assert config.get_execution_context_allocation_strategy() == ExecutionContextAllocationStrategy.USER_MANAGED
        assert config.dynamic_shapes_kernel_specialization_strategy == DynamicShapesKernelSpecializationStrategy.EAGER
        assert config.cuda_graph_strategy == CudaGraphStrategy.DISABLED
        assert config.get_runtime_cache() is not None


def test_what_was_compiled_is_kept_for_each_plan(plans: dict[Path, str], folder: Path) -> None:
    start = Start(plans, folder).warm_up()
    assert not folder.exists()
    start.caches.save()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        f"{'a' * 64}.cache": HEADER + b"rule\n",
        f"{'b' * 64}.cache": HEADER + b"other\n",
    }


def test_the_next_start_begins_with_it(plans: dict[Path, str], folder: Path) -> None:
    Start(plans, folder).warm_up().caches.save()
    assert Start(plans, folder).known == [HEADER + b"rule\n", HEADER + b"other\n"]


def test_nothing_new_is_not_written(plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Start(plans, folder).warm_up().caches.save()
    written: list[Path] = []
    monkeypatch.setattr(rtx_cache, "write_whole", lambda path, content: written.append(path))
    again = Start(plans, folder).warm_up()
    again.caches.save()
    assert written == []


def test_something_new_is_added(plans: dict[Path, str], folder: Path) -> None:
    first = Start(plans, folder)
    first.runs[0]()
    first.caches.save()
    kept = folder / f"{'b' * 64}.cache"
    assert kept.read_bytes() == HEADER
    Start(plans, folder).warm_up().caches.save()
    assert kept.read_bytes() == HEADER + b"other\n"


def test_a_plan_that_was_compiled_again_has_another_cache(plans: dict[Path, str], folder: Path) -> None:
    Start(plans, folder).warm_up().caches.save()
    (file, _), *others = plans.items()
    assert Start(dict([(file, "c" * 64), *others]), folder).known[0] == HEADER


@pytest.mark.parametrize("content", [b"", b"rubbish", b"1.6.0 Fake GPU\nrule\n", b"1.7.1 Another GPU\nrule\n"])
def test_one_that_is_foreign_is_passed_over_and_replaced(plans: dict[Path, str], folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    file = folder / f"{'a' * 64}.cache"
    file.write_bytes(content)
    start = Start(plans, folder)
    assert start.known[0] == HEADER
    start.warm_up().caches.save()
    assert file.read_bytes() == HEADER + b"rule\n"


def test_a_foreign_one_is_replaced_even_where_it_looks_the_same(
    plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may refuse what it would write itself: a newer driver's, for one."""
    Start(plans, folder).warm_up().caches.save()
    monkeypatch.setattr("support.fake_tensorrt.IRuntimeCache.deserialize", lambda self, blob: False)
    (folder / f"{'a' * 64}.cache").write_bytes(HEADER + b"rule\n")
    written: list[Path] = []
    monkeypatch.setattr(rtx_cache, "write_whole", lambda path, content: written.append(path))
    Start(plans, folder).warm_up().caches.save()
    assert len(written) == 2


def test_one_that_cannot_be_read_is_no_error(plans: dict[Path, str], folder: Path) -> None:
    (folder / f"{'a' * 64}.cache").mkdir(parents=True)
    start = Start(plans, folder)
    assert start.known[0] == HEADER
    start.warm_up().caches.save()
    assert (folder / f"{'b' * 64}.cache").read_bytes() == HEADER + b"other\n", "the other one is kept all the same"


def test_a_folder_that_cannot_be_made_is_no_error(plans: dict[Path, str], tmp_path: Path) -> None:
    (tmp_path / "caches").write_text("a file")
    Start(plans, tmp_path / "caches" / "tensorrt-rtx").warm_up().caches.save()
    assert (tmp_path / "caches").read_text() == "a file"


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


def test_a_full_disk_is_not_filled_further(
    plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    Start(plans, folder).warm_up().caches.save()
    assert list(folder.iterdir()) == []


def test_what_later_passes_add_is_saved_later(
    plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(plans, folder)
    start.runs[0]()
    start.caches.save()
    start.runs[1]()
    written: list[Path] = []
    monkeypatch.setattr(
        rtx_cache, "write_whole", lambda path, content: written.append(path) or write_whole(path, content)
    )
    start.caches.save()
    start.caches.save()
    assert len(written) == 1, "of the one that has changed, and once"
    assert Start(plans, folder).known == [HEADER + b"rule\n", HEADER + b"other\n"]


def test_a_library_that_fails_is_no_error(
    plans: dict[Path, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, *blob: Any) -> None:
        raise RuntimeError("no context is current")

    Start(plans, folder).warm_up().caches.save()
    monkeypatch.setattr("support.fake_tensorrt.IRuntimeCache.deserialize", fail)
    start = Start(plans, folder).warm_up()
    assert start.known == [HEADER, HEADER]
    monkeypatch.setattr("support.fake_tensorrt.IRuntimeCache.serialize", fail)
    start.caches.save()
    monkeypatch.setattr("support.fake_tensorrt.IRuntimeCache.serialize", lambda self: None)
    start.caches.save()
    monkeypatch.undo()
    assert Start(plans, folder).known == [HEADER + b"rule\n", HEADER + b"other\n"]


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


@pytest.mark.parametrize("base", [None, "", "/somewhere"])
def test_the_folder_is_the_users_cache(base: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if base is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", "/home/user")
    assert default_folder() == Path(base or "/home/user/.cache") / "specexport" / "tensorrt-rtx"
