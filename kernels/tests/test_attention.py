"""Attention against numpy in double precision, and the same bits whatever the passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto
from packed import same_bits, session

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
TOKENS = 300


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    size: int
    capacity: int = 330
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    neighbours: int = 0
    half: bool = False
    packed: bool = True
    turned: int | None = None

    @property
    def angles(self) -> int:
        return self.size if self.turned is None else self.turned


CASES = [
    Case(9, 3, 64),
    Case(4, 4, 32, sinks=True, packed=False),
    Case(8, 2, 128, window=100, neighbours=1),
    Case(4, 1, 256, soft_cap=30.0, packed=False, turned=0),
    Case(6, 2, 80, capacity=400, half=True),
    Case(8, 2, 64, capacity=400, window=130, soft_cap=20.0, sinks=True, half=True, packed=False, turned=48),
]


class Attention:
    """The operator over random tokens, from a cache that is full of NaN."""

    def __init__(self, case: Case) -> None:
        self.case = case
        random = np.random.default_rng(case.size)
        self.tokens = 2 * random.standard_normal((1, TOKENS, (case.heads + 2 * case.kv_heads) * case.size)).astype(
            np.float32
        )
        self.sinks = random.standard_normal(case.heads).astype(np.float32)
        pairs = case.angles // 2
        self.angles = np.arange(case.capacity)[:, None] / 10000 ** (np.arange(pairs) / max(pairs, 1))
        cache = (HALF if case.half else FLOAT, [1, case.kv_heads, case.capacity, case.size])
        rows = (FLOAT, [1, "T", case.kv_heads * case.size])
        width = case.heads + (2 * case.kv_heads if case.packed else 0)
        self.session = session(
            "AttentionHalf" if case.half else "Attention",
            {
                "q": (FLOAT, [1, "T", width * case.size]),
                "past_k": cache,
                "past_v": cache,
                "position": (INT64, [1]),
                "k": None if case.packed else rows,
                "v": None if case.packed else rows,
                "cos": np.cos(self.angles).astype(np.float32) if pairs else None,
                "sin": np.sin(self.angles).astype(np.float32) if pairs else None,
                "sinks": self.sinks if case.sinks else None,
            },
            {"y": FLOAT, "k_out": cache[0], "v_out": cache[0]},
            heads=case.heads,
            kv_heads=case.kv_heads,
            scale=case.size**-0.5,
            window=case.window,
            soft_cap=case.soft_cap,
            neighbours=case.neighbours,
        )

    def run(self, widths: list[int], position: int = 0) -> np.ndarray:
        """`[1, T, heads * size]`, in passes of these widths."""
        case = self.case
        shape = (1, case.kv_heads, case.capacity, case.size)
        cache = [np.full(shape, np.nan, np.float16 if case.half else np.float32) for _ in range(2)]
        bound = [ort.OrtValue.ortvalue_from_numpy(array) for array in cache]
        parts = []
        for width in widths:
            rows = np.take(self.tokens, range(position, position + width), 1, mode="wrap")
            query, key = case.heads * case.size, (case.heads + case.kv_heads) * case.size
            feeds = (
                {"q": rows}
                if case.packed
                else {"q": rows[..., :query], "k": rows[..., query:key], "v": rows[..., key:]}
            )
            io = self.session.io_binding()
            io.bind_output("y")
            for name, value in (feeds | {"position": np.array([position])}).items():
                io.bind_cpu_input(name, np.ascontiguousarray(value))
            for name, value in zip(("k", "v"), bound, strict=True):
                io.bind_ortvalue_input(f"past_{name}", value)
                io.bind_ortvalue_output(f"{name}_out", value)
            self.session.run_with_iobinding(io)
            parts.append(io.copy_outputs_to_cpu()[0])
            position += width
        return np.concatenate(parts, 1)

    def turned(self, heads: np.ndarray) -> np.ndarray:
        heads, n = heads.copy(), self.case.angles
        cos, sin = np.cos(self.angles)[:TOKENS, None], np.sin(self.angles)[:TOKENS, None]
        pairs = (slice(0, n, 2), slice(1, n, 2)) if self.case.neighbours else (slice(0, n // 2), slice(n // 2, n))
        first, second = heads[..., pairs[0]].copy(), heads[..., pairs[1]].copy()
        heads[..., pairs[0]], heads[..., pairs[1]] = first * cos - second * sin, second * cos + first * sin
        return heads

    def wanted(self) -> np.ndarray:
        case = self.case
        tokens = self.tokens[0].astype(np.float64).reshape(TOKENS, -1, case.size)
        queries = self.turned(tokens[:, : case.heads])
        keys, values = (
            self.turned(tokens[:, case.heads : case.heads + case.kv_heads]),
            tokens[:, case.heads + case.kv_heads :],
        )
        if case.half:
            keys, values = (array.astype(np.float16).astype(np.float64) for array in (keys, values))
        keys, values = (np.repeat(array, case.heads // case.kv_heads, 1) for array in (keys, values))
        scores = np.einsum("thd,shd->hts", queries, keys) * case.size**-0.5
        if case.soft_cap:
            scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        place = np.arange(TOKENS)
        seen = place[None] <= place[:, None]
        if case.window:
            seen &= place[None] > place[:, None] - case.window
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        if case.sinks:
            total = total + np.exp(self.sinks[:, None, None] - top)
        return np.einsum("hts,shd->thd", weights / total, values).reshape(1, TOKENS, -1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case) -> None:
    attention = Attention(case)
    whole = attention.run([256, 44])
    for widths in ([300], [1] * 300, [7] * 42 + [6], [128, 1, 1, 5, 9, 100, 56], [15, 16, 17, 252]):
        assert same_bits(whole, attention.run(widths)), f"passes of {widths[:7]}"
    # A key's value at the edge between two numbers of fp16 moves by 2^-11 of up to 8, its score by that times a query's
    # value and the scale, below 1e-3; the output by as much of a value.
    assert np.max(np.abs(whole - attention.wanted())) < (8e-3 if case.half else 2e-5)


@pytest.mark.parametrize(
    ("position", "widths", "says"), [(-1, [1], "do not fit"), (330, [1], "do not fit"), (325, [6], "do not fit")]
)
def test_bounds_of_the_cache(position: int, widths: list[int], says: str) -> None:
    with pytest.raises(Exception, match=says):
        Attention(CASES[0]).run(widths, position)
