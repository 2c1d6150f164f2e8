"""A small graph with what is quantized: a table of rows that the output shares, and layers in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from specexport.engines.onnxruntime.graphs import open_graph
from specexport.exporter.passes.optimize import save
from specexport.exporter.proving.widen import widen
from specexport.exporter.quantize.for_tensorrt import Made, quantize_for_tensorrt
from specexport.exporter.weights.recipe import Recipe, WeightRecipe

WIDTH = 64  # inputs and outputs alike, so that no shape betrays a wrong axis
TYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
NAMES = ("table", "up", "gate", "down")


def weights(precision: str = "fp32") -> dict[str, np.ndarray]:
    """`[N, K]` each, of rows and columns of very different size."""
    rng = np.random.default_rng(0)
    made = {}
    for name in NAMES:
        sizes = rng.uniform(0.05, 1, (WIDTH, 1)) * np.repeat(rng.uniform(0.2, 1, WIDTH // 32), 32)
        made[name] = (rng.normal(size=(WIDTH, WIDTH)) * sizes / 4).astype(TYPES[precision])
    return made


def graph(precision: str = "fp32", tied: bool = True) -> ir.Model:
    """`x = table[tokens]; y = (x @ up^T + x @ gate^T) @ down; logits = y @ table^T`; down is stored `[K, N]`."""
    dtype = ir.DataType.from_numpy(np.dtype(TYPES[precision]))
    values = {}
    for name, weight in weights(precision).items():
        tensor = ir.tensor(np.ascontiguousarray(weight.T) if name == "down" else weight, name=f"model.{name}")
        values[name] = ir.val(f"model.{name}", tensor.dtype, tensor.shape, const_value=tensor)
    tape = ir.tape.Tape()
    tokens = ir.val("tokens", ir.DataType.INT64, (1, 5))
    x = tape.op("Gather", [values["table"], tokens])
    sides = [tape.op("MatMul", [x, tape.op("Transpose", [values[name]], {"perm": [1, 0]})]) for name in ("up", "gate")]
    y = tape.op("MatMul", [tape.op("Add", sides), values["down"]])
    if tied:
        y = tape.op("MatMul", [y, tape.op("Transpose", [values["table"]], {"perm": [1, 0]})])
    for node in tape.nodes:
        for value in node.outputs:
            value.dtype = dtype
    logits = tape.op("Cast", [y], {"to": int(ir.DataType.FLOAT)})
    logits.name, logits.dtype = "logits", ir.DataType.FLOAT
    built = ir.Graph([tokens], [logits], nodes=tape.nodes, initializers=list(values.values()), opset_imports={"": 18})
    return ir.Model(built, ir_version=8)


def expected(
    tokens: np.ndarray, stored: dict[str, np.ndarray], rounded: Any = lambda name, x: x, tied: bool = True
) -> np.ndarray:
    """stored: the weights as they are restored, `[N, K]`. rounded: what becomes of what the layer `name` reads."""
    x = stored["table"][tokens]
    y = rounded("up", x) @ stored["up"].T + rounded("gate", x) @ stored["gate"].T
    y = rounded("down", y) @ stored["down"].T
    return rounded("table", y) @ stored["table"].T if tied else y


def recipe(own: WeightRecipe, names: tuple[str, ...] = NAMES) -> Recipe:
    return Recipe(dict.fromkeys(names, own))


def written(model: ir.Model, recipe: Recipe, folder: Path, made: Made | None = None) -> Path:
    """The quantized graph, in a file."""
    quantize_for_tensorrt(model, recipe, {} if made is None else made)
    graphs, _ = save({"onnx": model}, folder, "small")
    return folder / graphs["onnx"]


def run(path: Path, tokens: np.ndarray) -> np.ndarray:
    """The file's graph widened, on ONNX Runtime's CPU."""
    model = ir.load(path)
    widen(model)
    wide = path.with_name("wide.onnx")
    ir.save(model, wide)
    return open_graph(wide)({"tokens": tokens})["logits"]


TOKENS = np.array([[3, 0, 63, 7, 7]])
