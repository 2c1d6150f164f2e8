"""Which rotary embeddings the kernels' attention does by itself, and what looks like one and is none."""

from __future__ import annotations

import sys

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.passes.clean_up import CLEAN_UP
from specexport.exporter.quantize.rotary import absorb_rotary
from support.small_graphs import operators, run, weight, with_weights

pytest.importorskip("specexport_kernels")

# Four heads of 16 over two of keys, a cache of 8 rows, three of them in use.
ROWS, CAPACITY, POSITION = 4, 8, 3
ANGLES = np.arange(CAPACITY)[:, None] / 10 ** np.linspace(0, 1, 8)


def table(turned: int, neighbours: bool) -> tuple[np.ndarray, np.ndarray]:
    angles = ANGLES[:, : turned // 2]
    both = np.repeat(angles, 2, -1) if neighbours else np.concatenate([angles, angles], -1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


WEIGHTS: dict[str, np.ndarray] = {
    "halved_c": table(16, False)[0],
    "halved_s": table(16, False)[1],
    "paired_c": table(16, True)[0],
    "paired_s": table(16, True)[1],
    "first_c": table(8, False)[0],
    "first_s": table(8, False)[1],
    "gain": weight(1, 16, 4)[0],
    "split": np.array([8, 8]),
    "axis": np.array([-1]),
    "whole": np.array([1, 0, -1]),
    "halves": np.array([0, 0, 0, 16]),
    "end": np.array([2**63 - 1]),
} | {f"n{number}": np.array([number]) for number in (0, 1, 2, 4, 8)}
WEIGHTS |= {"zero": np.array(0), "one": np.array(1), "by4": np.array([1, -1, 4, 16]), "by2": np.array([1, -1, 2, 16])}
TOKENS = "int64[1, t] tokens"
PLACES = "w = Shape<start = 1, end = 2>(tokens) n = Squeeze(w) r = Range(zero, n, one) p = Add(r, position)"
# Of `$h`, the heads, to `$y`; `$` becomes q and k.
BY_HALVES = "$1 = Slice($x, n0, n8, axis) $2 = Slice($x, n8, end, axis) $3 = Neg($2) $t = Concat<axis = -1>($3, $1)"
BY_QUARTERS = BY_HALVES.replace("n8", "n4")
BY_PAIRS = (
    "$1 = Slice($x, n0, end, axis, n2) $2 = Slice($x, n1, end, axis, n2) $3 = Neg($2) $4 = Unsqueeze($3, axis) "
    "$5 = Unsqueeze($1, axis) $6 = Concat<axis = -1>($4, $5) $t = Reshape($6, halves)"
)
TURNED = "$a = Mul($x, cos) $b = Mul($t, sin) $y = Add($a, $b)"
ALL = f"{BY_HALVES} {TURNED}".replace("$x", "$h")
PAIRS = f"{BY_PAIRS} {TURNED}".replace("$x", "$h")
REST = "$y = Concat<axis = -1>($z, $9)"
PART = f"$x = Slice($h, n0, n8, axis) $9 = Slice($h, n8, end, axis) {BY_QUARTERS} {TURNED.replace('$y', '$z')} {REST}"
SPLIT = PART.replace(
    "$x = Slice($h, n0, n8, axis) $9 = Slice($h, n8, end, axis)", "$x, $9 = Split<axis = 3>($h, split)"
)
NORMED = "$h = SimplifiedLayerNormalization<epsilon = 0.01>($g, gain)"
SWAP = "Transpose<perm = [0, 2, 1, 3]>"


def made(turns: str, tables: str = "halved", keys: str = "", heads: str = "", swapped: bool = True) -> ir.Model:
    """keys: where they are turned otherwise. heads: what makes `$h` of `$g`, else they are the same."""
    turns = turns if heads else turns.replace("$h", "$g")
    keys = keys.replace("$h", "$g") or turns
    body = f"{PLACES} c = Gather({tables}_c, p) s = Gather({tables}_s, p) "
    axis = "n0" if swapped else "n1"
    body += f"cos = Unsqueeze(c, {axis}) sin = Unsqueeze(s, {axis}) "
    for name, shape, turn in (("q", "by4", turns), ("k", "by2", keys)):
        laid = f"$v = Reshape($, {shape}) $g = {SWAP}($v) " if swapped else f"$g = Reshape($, {shape}) "
        back = f"$o = {SWAP}($y) $f = Reshape($o, whole) " if swapped else "$f = Reshape($y, whole) "
        body += f"{laid} {heads} {turn} {back}".replace("$", name)
    body += "out, nk, nv = specexport.Attention<heads = 4, kv_heads = 2, scale = 0.25>(qf, ck, cv, position, kf, v)"
    given = f"{TOKENS}, float[1, t, 64] q, float[1, t, 32] k, float[1, t, 32] v, int64[1] position"
    caches = f"float[1, 2, {CAPACITY}, 16] ck, float[1, 2, {CAPACITY}, 16] cv"
    results = f"float[1, t, 64] out, {caches.replace('ck', 'nk').replace('cv', 'nv')}"
    return with_weights(f"{given}, {caches}", body, results, WEIGHTS)


@pytest.mark.parametrize(
    "more", ["e = ReduceMax<keepdims = 0>(tokens)", "f = Floor(ck) i = Cast<to = 7>(f) e = ReduceMax<keepdims = 0>(i)"]
)
def test_angles_that_depend_on_more_than_positions_stay(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the tokens themselves, or on the cache: there is no table of them."""
    monkeypatch.setattr(
        sys.modules[__name__], "PLACES", PLACES.replace("p = Add(r, position)", f"{more} p = Add(r, e)")
    )
    model = made(ALL)
    assert absorb_rotary(model, CAPACITY) == 0


@pytest.mark.parametrize(
    ("places", "absorbs"),
    [
        (PLACES.replace("(tokens)", "(hidden)"), 1),
        (
            PLACES.replace(
                "p = Add(r, position)", "m = ReduceMax<keepdims = 0>(hidden) e = Cast<to = 7>(m) p = Add(r, e)"
            ),
            0,
        ),
    ],
    ids=["how many", "what they hold"],
)
def test_hidden_states_only_say_how_many_rows_there_are(
    places: str, absorbs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the graph of a head, which counts its rows by them."""
    monkeypatch.setattr(sys.modules[__name__], "PLACES", places)
    monkeypatch.setattr(sys.modules[__name__], "TOKENS", "float[1, t, 5] hidden, int64[1, t] tokens")
    assert absorb_rotary(made(ALL), CAPACITY) == absorbs


def absorbed(*given: str, **options: object) -> tuple[ir.Model, int]:
    """What became of the graph, which attends as it did."""
    model = made(*given, **options)  # type: ignore[arg-type]
    changed = absorb_rotary(model, CAPACITY)
    CLEAN_UP(model)
    for ours, theirs in zip(run(model, **feeds()), run(made(*given, **options), **feeds()), strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return model, changed


def feeds() -> dict[str, np.ndarray]:
    rows = {name: weight(ROWS, width, seed)[None] for name, width, seed in (("q", 64, 1), ("k", 32, 2), ("v", 32, 3))}
    caches = {name: weight(16, 16, seed).reshape(1, 2, CAPACITY, 16) for name, seed in (("ck", 4), ("cv", 5))}
    return {"tokens": np.zeros((1, ROWS), np.int64), "position": np.array([POSITION]), **rows, **caches}


@pytest.mark.parametrize(
    ("turns", "tables", "turned", "neighbours"),
    [(ALL, "halved", 16, 0), (PAIRS, "paired", 16, 1), (PART, "first", 8, 0), (SPLIT, "first", 8, 0)],
    ids=["halves", "neighbours", "the first part", "the first part, by Split"],
)
@pytest.mark.parametrize("heads", ["", NORMED, "$h = Abs($g)"], ids=["", "normed", "otherwise made"])
@pytest.mark.parametrize("swapped", [True, False])
def test_they_go_into_attention(
    turns: str, tables: str, turned: int, neighbours: int, heads: str, swapped: bool
) -> None:
    model, changed = absorbed(turns, tables, heads=heads, swapped=swapped)
    assert changed == 1
    assert not {"Mul", "Neg", "Concat", "Slice", "Split"} & set(operators(model))
    (attention,) = (node for node in model.graph if node.op_type == "Attention")
    assert [list(value.shape or ()) for value in attention.inputs[6:8] if value is not None] == [[8, turned // 2]] * 2
    assert attention.attributes.get_int("neighbours", 0) == neighbours
    assert operators(model).count("Transpose") == (4 if "Abs" in heads and swapped else 0)


@pytest.mark.parametrize(
    ("turns", "tables", "keys"),
    [
        (ALL, "halved", ALL.replace("cos", "sin")),  # keys by others
        (ALL, "paired", ""),  # halves, whose numbers are turned by other angles
        (PAIRS, "halved", ""),
        (ALL.replace("Concat<axis = -1>($3, $1)", "Concat<axis = -1>($2, $1)"), "halved", ""),  # no turn
        (ALL.replace("Concat<axis = -1>($3, $1)", "Concat<axis = -1>($1, $3)"), "halved", ""),
        (ALL.replace("Add", "Sub"), "halved", ""),
        (ALL.replace("n8", "n4"), "halved", ""),  # parts that are no halves
        (ALL.replace("Mul($h, cos)", "Mul($t, cos)"), "halved", ""),
        (PAIRS.replace("($4, $5)", "($5, $4)"), "paired", ""),
        (PAIRS.replace("<axis = -1>", "<axis = -2>"), "paired", ""),  # the second numbers behind all of the first
        (PART.replace("($z, $9)", "($9, $z)"), "first", ""),  # the last part
        (PART.replace("$9 = Slice($h, n8, end", "$9 = Slice($h, n0, n8"), "first", ""),
        (SPLIT.replace("($z, $9)", "($z, $x)"), "first", ""),
    ],
)
def test_others_stay(turns: str, tables: str, keys: str) -> None:
    model, changed = absorbed(turns, tables, keys)
    assert changed == 0
    assert "Mul" in operators(model)
