"""Attention against numpy in double precision, and the same bits whatever the passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto
from packed import same_bits, session

FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
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

    def __init__(self, case: Case, trees: bool = False) -> None:
        self.case, self.trees = case, trees
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
                "ancestors": (BOOL, ["R", "R"]) if trees else None,
            },
            {"y": FLOAT, "k_out": cache[0], "v_out": cache[0]},
            heads=case.heads,
            kv_heads=case.kv_heads,
            scale=case.size**-0.5,
            window=case.window,
            soft_cap=case.soft_cap,
            neighbours=case.neighbours,
        )

    def cache(self) -> list[np.ndarray]:
        shape = (1, self.case.kv_heads, self.case.capacity, self.case.size)
        return [np.full(shape, np.nan, np.float16 if self.case.half else np.float32) for _ in range(2)]

    def one_pass(
        self,
        tokens: Sequence[int] | np.ndarray,
        position: int,
        cache: list[np.ndarray],
        ancestors: np.ndarray | None = None,
        present: list[np.ndarray] | None = None,
    ) -> np.ndarray:
        """`[1, T, heads * size]`; writes into the cache, or into a copy of it, `present`."""
        case = self.case
        rows = np.take(self.tokens, tokens, 1, mode="wrap")
        query, key = case.heads * case.size, (case.heads + case.kv_heads) * case.size
        feeds = (
            {"q": rows} if case.packed else {"q": rows[..., :query], "k": rows[..., query:key], "v": rows[..., key:]}
        )
        feeds["position"] = np.array([position])
        if self.trees:
            feeds["ancestors"] = np.tri(len(tokens), dtype=bool) if ancestors is None else ancestors
        io = self.session.io_binding()
        io.bind_output("y")
        for name, value in feeds.items():
            io.bind_cpu_input(name, np.ascontiguousarray(value))
        for name, before, after in zip(("k", "v"), cache, present or cache, strict=True):
            io.bind_ortvalue_input(f"past_{name}", ort.OrtValue.ortvalue_from_numpy(before))
            io.bind_ortvalue_output(f"{name}_out", ort.OrtValue.ortvalue_from_numpy(after))
        self.session.run_with_iobinding(io)
        y: np.ndarray = io.copy_outputs_to_cpu()[0]
        return y

    def run(self, widths: list[int], position: int = 0) -> np.ndarray:
        """`[1, T, heads * size]`, in passes of these widths."""
        cache, parts = self.cache(), []
        for width in widths:
            parts.append(self.one_pass(range(position, position + width), position, cache))
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


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=str)
def test_reading_the_rows_of_another_layer(case: Case) -> None:
    """The bits of the pass that wrote them; nothing is written."""
    writes = Attention(case)
    cache = writes.cache()
    whole = [writes.one_pass(range(256), 0, cache), writes.one_pass(range(256, 300), 256, cache)]
    kept = [half.copy() for half in cache]
    kinds = {"q": (FLOAT, [1, "T", case.heads * case.size]), "position": (INT64, [1])}
    half = (HALF if case.half else FLOAT, [1, case.kv_heads, case.capacity, case.size])
    tables = [np.cos(writes.angles).astype(np.float32), np.sin(writes.angles).astype(np.float32)]
    inputs = {"q": kinds["q"], "past_k": half, "past_v": half, "position": kinds["position"], "k": None, "v": None}
    reads = session(
        "AttentionHalf" if case.half else "Attention",
        {**inputs, "cos": tables[0], "sin": tables[1], "sinks": writes.sinks if case.sinks else None},
        {"y": FLOAT},
        heads=case.heads,
        kv_heads=case.kv_heads,
        scale=case.size**-0.5,
        window=case.window,
        soft_cap=case.soft_cap,
        reads=1,
    )
    for start, wanted in ((0, whole[0]), (256, whole[1])):
        rows = writes.tokens[:, start : start + wanted.shape[1], : case.heads * case.size]
        feeds = {"q": np.ascontiguousarray(rows), "past_k": cache[0], "past_v": cache[1], "position": np.array([start])}
        assert same_bits(reads.run(None, feeds)[0], wanted)
    assert all(same_bits(one, other) for one, other in zip(cache, kept, strict=True))


def random_tree(rows: int, random: np.random.Generator) -> np.ndarray:
    """Ancestors `[T, T]` of rows whose parents are random rows before them; some have none."""
    ancestors = np.eye(rows, dtype=bool)
    for row in range(1, rows):
        parent = random.integers(max(-1, row - 6), row)
        if parent >= 0:
            ancestors[row] |= ancestors[parent]
    return ancestors


@pytest.mark.parametrize("case", [*CASES, Case(6, 2, 32, window=3), Case(6, 2, 32, window=5, half=True)], ids=str)
@pytest.mark.parametrize(("past", "rows"), [(0, 5), (118, 15), (126, 2), (127, 9), (128, 24), (250, 40)])
def test_a_row_of_a_tree_is_the_last_of_a_pass_over_its_path(case: Case, past: int, rows: int) -> None:
    random = np.random.default_rng(past + rows)
    ancestors, tokens = random_tree(rows, random), random.integers(0, TOKENS, rows)
    attention = Attention(case, trees=True)
    before = attention.cache()
    if past:
        attention.one_pass(range(past), 0, before)
    cache = [array.copy() for array in before]
    tree = attention.one_pass(tokens, past, cache, ancestors)
    plain = Attention(case)
    for row in range(rows):
        path = np.flatnonzero(ancestors[row])
        straight = [array.copy() for array in before]
        wanted = plain.one_pass(tokens[path], past, straight)
        assert same_bits(tree[:, row], wanted[:, -1]), f"row {row} of path {path}"
        for one, other in zip(cache, straight, strict=True):
            assert same_bits(one[:, :, past + row], other[:, :, past + len(path) - 1])
            assert same_bits(one[:, :, :past], other[:, :, :past])


def test_a_chain_is_a_plain_pass() -> None:
    assert same_bits(Attention(CASES[0], trees=True).run([7, 200, 1]), Attention(CASES[0]).run([7, 200, 1]))


@pytest.mark.parametrize(
    ("ancestors", "says"),
    [
        ([[1, 0, 0], [1, 1, 0]], "not \\[T, T\\]"),
        ([[1, 0, 0], [0, 0, 0], [0, 0, 1]], "not among its own ancestors"),
        ([[1, 1, 0], [0, 1, 0], [0, 0, 1]], "an ancestor behind it"),
        ([[1, 0, 0], [1, 1, 0], [0, 1, 1]], "its parent and its parent's ancestors"),
        ([[1, 0, 0], [0, 1, 0], [1, 1, 1]], "its parent and its parent's ancestors"),
    ],
)
def test_what_is_no_tree(ancestors: list[list[int]], says: str) -> None:
    attention = Attention(CASES[0], trees=True)
    with pytest.raises(Exception, match=f"specexport.Attention: .*{says}"):
        attention.one_pass([0, 1, 2], 5, attention.cache(), np.array(ancestors, bool))


def test_a_block_of_keys_at_minus_infinity_leaves_the_others() -> None:
    attention = Attention(Case(1, 1, 16, turned=0))
    cache = attention.cache()
    attention.one_pass(range(128), 0, cache)
    cache[0][0, 0, :128] = np.where(attention.tokens[0, 128, :16] > 0, -3e38, 3e38)  # every score is -inf
    y = attention.one_pass([128], 128, cache)
    assert np.allclose(y[0, 0], attention.tokens[0, 128, 32:], rtol=1e-6)
