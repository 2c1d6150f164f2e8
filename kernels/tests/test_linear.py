"""Products against numpy in double precision, and the same bits in passes of any width."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from packed import float_panels, int4_panels, int8_panels, same_bits, session

FLOAT = TensorProto.FLOAT
ROWS = 40
FORMS = ("Int8", "Int4", "BFloat16", "Float16", "Float")


def made(form: str, outputs: int, inputs: int, random: np.random.Generator) -> tuple[Any, Any, np.ndarray]:
    """Packed weights, scales or None, and the weights `[N, K]` that they stand for."""
    dense = (random.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
    if form == "Int8":
        integers = random.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        scales = (random.random(outputs) + 0.5).astype(np.float32) / 127
        return int8_panels(integers), scales, integers * scales[:, None].astype(np.float64)
    if form == "Int4":
        integers = random.integers(-8, 8, (outputs, inputs)).astype(np.int8)
        scales = (random.random((outputs, -(-inputs // 32))) + 0.5).astype(np.float32) / 8
        return *int4_panels(integers, scales), integers * np.repeat(scales, 32, 1)[:, :inputs].astype(np.float64)
    narrow = dense.astype({"BFloat16": ml_dtypes.bfloat16, "Float16": np.float16, "Float": np.float32}[form])
    return float_panels(narrow), None, narrow.astype(np.float64)


def hadamard(values: np.ndarray, block: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    turned: np.ndarray = values.reshape(len(values), -1, block) @ matrix / np.sqrt(block)
    return turned.reshape(values.shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["plain", "bias", "norm", "skip", "hadamard", "silu", "gelu"])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (576, 960), (40, 20), (100, 33)])
def test_rows(form: str, kind: str, inputs: int, outputs: int) -> None:
    gated, normed = kind in ("silu", "gelu"), kind in ("norm", "skip")
    if (gated and outputs % 32) or (kind == "hadamard" and inputs % 32):
        pytest.skip("not a shape of this kind")
    random = np.random.default_rng(inputs)
    weights, scales, dense = made(form, outputs, inputs, random)
    bias, gain = (random.random(n).astype(np.float32) + 0.5 for n in (outputs, inputs))
    x, skip = (random.standard_normal((ROWS, inputs)).astype(np.float32) for _ in range(2))
    x[3], x[5] = 0, x[5] * 1e4
    one = session(
        f"Linear{form}",
        {
            "x": (FLOAT, ["T", inputs]),
            "weights": weights,
            "scales": scales,
            "bias": bias if kind != "plain" else None,
            "gain": gain if normed else None,
            "skip": (FLOAT, ["T", inputs]) if kind == "skip" else None,
        },
        {"y": FLOAT} | ({"total": FLOAT} if kind == "skip" else {}),
        num_outputs=outputs,
        epsilon=1e-5,
        hadamard=32 if kind == "hadamard" else 0,
        gate={"silu": 1, "gelu": 2}.get(kind, 0),
    )

    def run(begin: int, end: int) -> list[np.ndarray]:
        return one.run(None, {"x": x[begin:end]} | ({"skip": skip[begin:end]} if kind == "skip" else {}))

    whole = run(0, ROWS)
    for begin, end in ((0, 1), (1, 6), (6, 15), (15, 39), (39, 40)):
        assert all(same_bits(a[begin:end], b) for a, b in zip(whole, run(begin, end), strict=True))

    # what rounding does to rows is not what is tested here, so the reference rounds them too
    rows = x.astype(np.float64) + (skip if kind == "skip" else 0)
    if kind == "skip":
        assert same_bits(whole[1], x + skip)
    if normed:
        rows = rows / np.sqrt(np.mean(rows**2, -1, keepdims=True) + 1e-5) * gain
    if kind == "hadamard":
        rows = hadamard(rows, 32)
    if form.startswith("Int"):
        largest = np.abs(rows).max(-1, keepdims=True)
        rows = np.rint(rows * 127 / np.where(largest > 0, largest, 1)) * largest / 127
    wanted = rows @ dense.T + (bias if kind != "plain" else 0)
    if gated:
        gate, up = wanted[:, : outputs // 2], wanted[:, outputs // 2 :]
        cubic = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        wanted = up * (
            gate / (1 + np.exp(-np.clip(gate, -80, None))) if kind == "silu" else gate / 2 * (1 + np.tanh(cubic))
        )
    magnitude = np.abs(wanted).max(-1, keepdims=True) + 1e-9
    # A row of int8 may have a value at the edge between two steps: one of 127 steps, of one of the inputs.
    allowed = 2e-2 if form.startswith("Int") else 1e-4
    assert np.max(np.abs(whole[0] - wanted) / magnitude) < allowed


@pytest.mark.parametrize("form", FORMS)
def test_embedding(form: str) -> None:
    weights, scales, dense = made(form, 33, 40, np.random.default_rng(0))
    one = session(
        f"Embedding{form}",
        {"ids": (TensorProto.INT64, [1, "T"]), "weights": weights, "scales": scales},
        {"y": FLOAT},
        num_inputs=40,
        num_outputs=33,
    )
    (rows,) = one.run(None, {"ids": np.arange(33)[None]})
    assert np.allclose(rows[0], dense, rtol=1e-6, atol=0)
    with pytest.raises(Exception, match="a token is not in the table"):
        one.run(None, {"ids": np.array([[33]])})  # of the last panel, behind the rows


def test_a_row_that_is_not_finite_spoils_only_itself() -> None:
    weights, scales, _ = made("Int8", 32, 64, np.random.default_rng(0))
    one = session(
        "LinearInt8", {"x": (FLOAT, ["T", 64]), "weights": weights, "scales": scales}, {"y": FLOAT}, num_outputs=32
    )
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[2, 9] = np.nan, np.inf
    (y,) = one.run(None, {"x": x})
    assert np.isnan(y[[0, 2]]).all()
    assert np.isfinite(y[1]).all()


def test_no_rows() -> None:
    weights, scales, _ = made("Int8", 32, 64, np.random.default_rng(0))
    one = session(
        "LinearInt8", {"x": (FLOAT, ["T", 64]), "weights": weights, "scales": scales}, {"y": FLOAT}, num_outputs=32
    )
    assert one.run(None, {"x": np.ones((0, 64), np.float32)})[0].shape == (0, 32)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": np.zeros((2, 15, 16, 4), np.int8)}, "weights are not"),
        ({"scales": np.zeros(31, np.float32)}, "scales are not"),
        ({"scales": None}, "scales are not"),
        ({"bias": np.zeros(31, np.float32)}, "bias is not"),
        ({"gain": np.zeros(63, np.float32)}, "gain is not"),
        ({"skip": (FLOAT, ["T", 64])}, "skip is not"),
        ({"num_outputs": 0}, "num_outputs"),
        ({"num_outputs": 48, "gate": 1}, "multiple of 32"),
        ({"gate": 7}, "gate"),
        ({"hadamard": 48}, "power of two"),
        ({"hadamard": 128}, "Hadamard blocks"),
    ],
)
def test_refusals(changes: dict[str, Any], says: str) -> None:
    weights, scales, _ = made("Int8", 32, 64, np.random.default_rng(0))
    inputs: dict[str, Any] = {
        "x": (FLOAT, ["T", 64]),
        "weights": weights,
        "scales": scales,
        "bias": None,
        "gain": None,
        "skip": None,
    }
    attributes: dict[str, Any] = {"num_outputs": 32}
    for name, value in changes.items():
        (inputs if name in inputs else attributes)[name] = value
    feeds = {name: np.ones((2, 64), np.float32) for name, value in inputs.items() if isinstance(value, tuple)}
    with pytest.raises(Exception, match=f"specexport.Linear.*: .*{says}"):
        session("LinearInt8", inputs, {"y": FLOAT}, **attributes).run(None, feeds)
