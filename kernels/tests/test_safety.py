"""What must not happen to a process that runs the operators for long, in threads, after a fork, or over odd numbers."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from packed import int8_panels, same_bits, session
from test_attention import CASES, Attention, Case

FLOAT = TensorProto.FLOAT


class Product:
    """A gated int8 product with a norm before it, of random weights."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.x = random.standard_normal((40, 576)).astype(np.float32)
        weights = int8_panels(random.integers(-127, 128, (1024, 576)).astype(np.int8))
        self.session = session(
            "LinearInt8",
            {
                "x": (FLOAT, ["T", 576]),
                "weights": weights,
                "scales": np.full(1024, 1e-4, np.float32),
                "bias": None,
                "gain": np.ones(576, np.float32),
            },
            {"y": FLOAT},
            num_outputs=1024,
            epsilon=1e-5,
            gate=1,
        )

    def run(self, rows: slice) -> np.ndarray:
        y: np.ndarray = self.session.run(None, {"x": self.x[rows]})[0]
        return y


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_from_pass_to_pass() -> None:
    product, attention = Product(), Attention(CASES[0])
    cache = attention.cache()

    def grown(count: int) -> int:
        before = resident()
        for _ in range(count):
            for width in (1, 5, 40):
                product.run(slice(0, width))
                attention.one_pass(range(width), 0, cache)
        return resident() - before

    grown(50)
    # what a call loses, it loses every time: a status, a shape or scratch of 100 bytes would be 240 KB
    assert min(grown(400) for _ in range(3)) < 100_000


def test_two_sessions_in_two_threads() -> None:
    product, attention = Product(), Attention(CASES[0])
    wanted = product.run(slice(0, 40)), attention.run([40, 1, 5, 254])
    wrong: list[str] = []

    def multiply() -> None:
        for _ in range(50):
            for rows in (slice(0, 40), slice(3, 4), slice(7, 12)):
                if not same_bits(product.run(rows), wanted[0][rows]):
                    wrong.append(f"product of {rows}")

    def attend() -> None:
        for widths in ([40, 260], [1] * 20 + [280], [300]):
            if not same_bits(attention.run(widths), wanted[1]):
                wrong.append(f"attention in passes of {widths}")

    threads = [threading.Thread(target=target) for target in (multiply, attend, multiply, attend)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_runs_sessions_of_its_own_after_a_fork() -> None:
    wanted = Product().run(slice(0, 5))
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if same_bits(Product().run(slice(0, 5)), wanted) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_a_cache_that_is_not_updated_in_place_is_copied(case: Case) -> None:
    attention = Attention(case)
    past = attention.cache()
    attention.one_pass(range(200), 0, past)
    kept, straight = [array.copy() for array in past], [array.copy() for array in past]
    wanted = attention.one_pass(range(200, 207), 200, straight)
    feeds = {"q": np.take(attention.tokens, range(200, 207), 1), "position": np.array([200])}
    y, *present = attention.session.run(None, feeds | {"past_k": past[0], "past_v": past[1]})
    assert same_bits(y, wanted)
    for before, array, after, in_place in zip(kept, past, present, straight, strict=True):
        assert same_bits(before, array)
        assert same_bits(after, in_place)


def test_keys_and_values_in_the_same_memory_are_refused() -> None:
    attention = Attention(CASES[0])
    array = attention.cache()[0]
    with pytest.raises(Exception, match="keys and values are in the same memory"):
        attention.one_pass([0], 0, [array, array])


def test_memory_that_overlaps_is_refused() -> None:
    case = CASES[0]
    attention = Attention(case)
    shape = (1, case.kv_heads, case.capacity, case.size)
    count = int(np.prod(shape))
    memory = np.zeros(count + 64, np.float32)
    past, present = memory[:count].reshape(shape), memory[64:].reshape(shape)
    with pytest.raises(Exception, match="the present's memory overlaps the past's"):
        attention.one_pass([0], 0, [past, attention.cache()[1]], present=[present, attention.cache()[1]])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_odd_numbers_spoil_no_other_row(case: Case) -> None:
    attention = Attention(case, trees=True)
    rows = np.arange(20)
    clean, cache = attention.cache(), attention.cache()
    attention.one_pass(range(130), 0, clean)
    cache = [array.copy() for array in clean]
    wanted = attention.one_pass(rows, 130, clean, np.eye(20, dtype=bool))
    attention.tokens[0, 3], attention.tokens[0, 8, ::7] = np.nan, np.inf
    attention.tokens[0, 9], attention.tokens[0, 15] = 1e-42, -3e38
    got = attention.one_pass(rows, 130, cache, np.eye(20, dtype=bool))  # no row sees another
    odd = [3, 8, 9, 15]
    assert same_bits(np.delete(got, odd, 1), np.delete(wanted, odd, 1))
    assert np.isnan(got[0, 3]).all()
    assert np.isfinite(got[0, 9]).all()


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_passes_that_end_at_the_capacity(rows: int) -> None:
    case = CASES[0]
    attention = Attention(case)
    y = attention.run([case.capacity - 30, 30 - rows, rows])
    assert y.shape == (1, case.capacity, case.heads * case.size)
    assert same_bits(y, attention.run([case.capacity]))
