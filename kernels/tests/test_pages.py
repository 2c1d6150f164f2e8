"""Constant weights lie in pages of 2 MB where the host has them (kernels/src/pages.h)."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto
from packed import int8_panels, same_bits, session

MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HAS_PAGES = MODES.exists() and "[never]" not in MODES.read_text(encoding="ascii")
PR_SET_THP_DISABLE = 41
CHUNK_KB = 256 * 1024  # `CHUNK` of kernels/src/pages.cpp
X = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)

pytestmark = pytest.mark.skipif(not HAS_PAGES, reason="needs transparent huge pages")


def product(outputs: int, in_file: bool = True) -> ort.InferenceSession:
    weights = int8_panels(np.random.default_rng(0).integers(-127, 128, (outputs, 512), np.int8))
    inputs = {"x": (TensorProto.FLOAT, ["T", 512]), "weights": weights, "scales": np.full(outputs, 1e-4, np.float32)}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "one.onnx" if in_file else None
        return session("LinearInt8", inputs, {"y": TensorProto.FLOAT}, file, num_outputs=outputs)


def run(model: ort.InferenceSession) -> np.ndarray:
    y: np.ndarray = model.run(None, {"x": X})[0]
    return y


def mapped() -> list[tuple[str, int, bool]]:
    """(file, resident bytes, whether it holds copies) of what this process has in memory.

    Copies lie in areas of at least 256 MB with large pages. NumPy asks for large pages as well, and the heap uses what
    it freed again: such areas are smaller.
    """
    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(encoding="utf-8"), flags=re.M)[1:]
    return [
        (
            area.splitlines()[0].partition("/")[2],
            int(re.findall(r"^Rss: +(\d+) kB", area, re.M)[0]) * 1024,
            " hg" in re.findall(r"^VmFlags:.*", area, re.M)[0]
            and int(re.findall(r"^Size: +(\d+) kB", area, re.M)[0]) >= CHUNK_KB,
        )
        for area in areas
    ]


def copied() -> int:
    """Bytes of copies."""
    return sum(resident for _, resident, copies in mapped() if copies)


def test_weights_of_a_file_are_copied_once_and_its_memory_is_given_back() -> None:
    wanted, before = run(product(16)), copied()
    model = product(4096)
    assert same_bits(run(model)[:, :16], wanted)
    assert copied() - before >= 4096 * 512
    files = [resident for name, resident, _ in mapped() if "one.onnx.weights" in name]
    assert files  # or else ONNX Runtime does not map it any more
    assert sum(files) < 2**18
    del model
    assert copied() <= before


def test_weights_that_are_no_file_s_are_not_copied() -> None:
    """Their memory could not be given back."""
    before = copied()
    model = product(4096, in_file=False)
    assert copied() <= before
    assert same_bits(run(model), run(product(4096)))


def test_copies_outlive_sessions_made_before_and_after_them() -> None:
    before = copied()
    first, second = product(2048), product(4096)
    wanted = run(second)
    del first
    third = product(2048)
    assert same_bits(run(second), wanted)
    assert same_bits(run(third), wanted[:, :2048])
    del second
    assert same_bits(run(third), wanted[:, :2048])
    del third
    assert copied() <= before


def test_sessions_come_and_go_in_threads() -> None:
    before, wanted = copied(), run(product(512))
    wrong: list[int] = []

    def work(thread: int) -> None:
        for _ in range(40):
            if not same_bits(run(product(512)), wanted):
                wrong.append(thread)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert copied() <= before


def in_a_child(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, 1}
    return code == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_copies_of_its_own() -> None:
    kept = product(4096)
    wanted = run(kept)
    assert in_a_child(lambda: same_bits(run(product(4096)), wanted))
    assert same_bits(run(kept), wanted)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_nothing_is_copied_where_large_pages_are_off() -> None:
    def make() -> bool:
        before = copied()
        kept = product(4096)
        return copied() <= before and kept is not None

    def make_without() -> bool:
        return ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 and make()

    assert in_a_child(make_without)
    assert not in_a_child(make)
