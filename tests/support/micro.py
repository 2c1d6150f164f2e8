"""Models of a few numbers, written as graphs by hand: they load at once, and a wrong cache row shows in their logits.

cache row      of a token: its row of a random table, for each layer a key and a value
logits[t]      next[token[t]] + the sum over rows c <= position + t of weight[c] * row[c] @ head
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from specexport.bundle import Bundle, CacheLayer, Contract, ModelSpec, Precision
from specexport.engines.base import Engine, Logits, OpenedDraft

from support.doubles import with_models, write_bundle
from support.rolls_back import RollsBack

VOCAB = 23
# No two layers alike, so that no size can stand for another.
LAYERS = (CacheLayer(2, 4), CacheLayer(1, 8), CacheLayer(3, 6))
TYPES: dict[Precision, Any] = {"fp32": np.float32, "fp16": np.float16, "bf16": bfloat16}


@dataclass(frozen=True)
class Micro:
    """A model. The numbers of its rows are multiples of 1/4, exact in every precision."""

    layers: tuple[CacheLayer, ...] = LAYERS
    vocab_size: int = VOCAB
    seed: int = 0
    noise: float = 0.0  # of the head: a draft of the same seed agrees with its target now and then

    @property
    def next(self) -> NDArray[np.float32]:
        """`[vocab, vocab]`."""
        return (
            np.random.default_rng(self.seed + 2)
            .normal(scale=3.0, size=(self.vocab_size, self.vocab_size))
            .astype(np.float32)
        )

    def weight(self, capacity: int) -> NDArray[np.float32]:
        """`[capacity]`, of 1/8 to 1 with either sign."""
        rng = np.random.default_rng(self.seed + 3)
        return (rng.integers(1, 9, capacity) * rng.choice([-1, 1], capacity) / 8).astype(np.float32)

    def tables(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """For each cache its rows `[vocab, heads, head_dim]` and the head `[heads * head_dim, vocab]`."""
        rng, noise = np.random.default_rng(self.seed), np.random.default_rng(self.seed + 1)
        found = []
        for layer in (layer for layer in self.layers for _ in ("key", "value")):
            rows = rng.integers(-8, 9, (self.vocab_size, layer.num_kv_heads, layer.head_dim)) / 4
            shape = (layer.num_kv_heads * layer.head_dim, self.vocab_size)
            head = (rng.integers(-8, 9, shape) + self.noise * noise.normal(size=shape)) / 32  # logits of some units
            found.append((rows.astype(np.float32), head.astype(np.float32)))
        return found

    def spec(self, role: str) -> ModelSpec:
        graphs = {dialect: f"graphs/{role}-{dialect}.onnx" for dialect in ("onnx", "rows")}
        return ModelSpec(
            f"org/{role}",
            "Micro",
            "0" * 64,
            1000,
            self.vocab_size,
            self.layers,
            graphs,
            f"graphs/{role}.weights",
            "float",
            (),
            None,
        )


@dataclass(frozen=True)
class Overflowing(Micro):
    """The cache rows of the last token are `value`, infinite as those of fp16 can be; `shift` is added to its logit.

    In the dialect `rows` a pass leaves out those of its own rows that are masked, as causal kernels do; of older ones a
    masked row is multiplied by 0.
    """

    value: float = np.inf
    shift: float = 0.0

    @property
    def next(self) -> NDArray[np.float32]:
        found = super().next
        found[:, -1] += self.shift
        return found

    def tables(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        found = super().tables()
        for rows, _ in found:
            rows[-1] = self.value
        return found


class MicroDecoder(RollsBack):
    """The same in numpy, on the host."""

    def __init__(self, model: Micro, contract: Contract) -> None:
        self.vocab_size, self._contract, self._tables = model.vocab_size, contract, model.tables()
        self._next, self._weight = model.next, model.weight(contract.capacity)
        self.caches = [
            np.zeros((rows.shape[1], contract.capacity, rows.shape[2]), np.float32) for rows, _ in self._tables
        ]

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        count = len(tokens)
        rows = position + np.arange(count)
        assert rows[-1] < self._contract.capacity
        columns = np.arange(self._contract.capacity)
        weight = np.where(columns[None] <= rows[:, None], self._weight[None], np.float32(0))
        logits = self._next[list(tokens)]
        for cache, (table, head) in zip(self.caches, self._tables, strict=True):
            cache[:, rows] = table[list(tokens)].transpose(1, 0, 2)
            logits += weight @ (cache.transpose(1, 0, 2).reshape(self._contract.capacity, -1) @ head)
        return logits if count <= self._contract.widest_step else logits[-1:]

    def feed(self, tokens: Sequence[int], position: int) -> None:
        if tokens:
            self.step(tokens, position)

    def overwrite_rows(self, start: int, value: float) -> None:
        for cache in self.caches:
            cache[:, start:] = value

    def read_rows(self, end: int) -> list[np.ndarray]:
        return [cache[:, :end].copy() for cache in self.caches]

    def write_rows(self, saved: Sequence[np.ndarray], start: int, end: int) -> None:
        for cache, rows in zip(self.caches, saved, strict=True):
            cache[:, start:end] = rows[:, start:end]


def micro_bundle(
    root: Path,
    contract: Contract,
    target: Micro | None = None,
    draft: Micro | None = None,
    has_draft: bool = True,
    dialect: str = "onnx",
) -> Bundle:
    """A bundle of two micro models, or of a target alone. Nothing in it is proved."""
    models = {"target": target or Micro(), **({"draft": draft or Micro(noise=2.0)} if has_draft else {})}
    bundle = write_bundle(root, contract, models["target"].vocab_size, has_draft=has_draft)
    specs: dict[str, Any] = {}
    for role, model in models.items():
        specs[role] = model.spec(role)
        onnx.save(graph(model, contract, dialect), root / specs[role].graphs[dialect])
        specs[role] = replace(specs[role], graphs={dialect: specs[role].graphs[dialect]})
    return replace(bundle, manifest=with_models(bundle.manifest, specs))


def host_engine(
    contract: Contract, target: Micro | None = None, draft: Micro | None = None, has_draft: bool = True
) -> Engine:
    return Engine(
        "host",
        "onnx",
        MicroDecoder(target or Micro(), contract),
        OpenedDraft(MicroDecoder(draft or Micro(noise=2.0), contract)) if has_draft else None,
    )


def graph(model: Micro, contract: Contract, dialect: str = "onnx") -> onnx.ModelProto:
    """In the dialect `onnx` or `rows`; see `Contract` for its inputs and outputs."""
    element = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[contract.precision]
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, NDArray[Any]] = {
        "one": np.array(1),
        "zero": np.array(0),
        "zeros": np.array([0]),
        "one.axis": np.array([1]),
        "far": np.array([1 << 40]),
        "widest": np.array([contract.widest_step]),
        "minus_one": np.array([-1]),
        "rows_axis": np.array([2]),
        "nothing": np.array(0, np.float32),
        "next": model.next,
        "weight": model.weight(contract.capacity),
    }

    def op(kind: str, inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs.split(), [output], **attributes))
        return output

    op("Shape", "tokens", "width", start=1)
    op("Shape", "columns", "span", start=0)
    op("Squeeze", "width", "width.number")
    op("Range", "zero width.number one", "offsets")
    op("Add", "position offsets", "row.numbers")  # [T]
    op("Unsqueeze", "row.numbers minus_one", "row.column")
    past = dict(model.spec("model").cache_names("past"))
    op("Squeeze", "tokens zeros", "token.row")
    parts = [op("Gather", "next token.row", "followers")]

    def attend(
        rows: str, columns: str, visible: str, head: str, layer: CacheLayer, output: str, skips: bool = False
    ) -> None:
        """rows `[1, heads, n, head_dim]` at `columns [n]` that are `visible [T, n]`. skips: leaves out the others."""
        op("Cast", rows, f"{output}.float", to=TensorProto.FLOAT)
        op("Transpose", f"{output}.float", f"{output}.turned", perm=[0, 2, 1, 3])
        constants[f"{output}.shape"] = np.array([-1, layer.num_kv_heads * layer.head_dim])
        op("Reshape", f"{output}.turned {output}.shape", f"{output}.flat")
        op("MatMul", f"{output}.flat {head}", f"{output}.scores")
        op("Gather", f"weight {columns}", f"{output}.weights")
        if skips:
            op("Unsqueeze", f"{output}.weights minus_one", f"{output}.by.row")
            op("Mul", f"{output}.by.row {output}.scores", f"{output}.weighted")
            op("Unsqueeze", f"{visible} minus_one", f"{output}.visible")
            op("Where", f"{output}.visible {output}.weighted nothing", f"{output}.seen")
            parts.append(op("ReduceSum", f"{output}.seen one.axis", output, keepdims=0))
            return
        op("Where", f"{visible} {output}.weights nothing", f"{output}.weight")
        parts.append(op("MatMul", f"{output}.weight {output}.scores", output))

    overflows = isinstance(model, Overflowing)
    op("LessOrEqual", "columns row.column", "visible")
    op("Less", "columns position", "visible.past")
    op("LessOrEqual", "row.numbers row.column", "visible.new")
    for (name, layer), (table, head) in zip(past.items(), model.tables(), strict=True):
        constants[f"{name}.table"] = table.astype(TYPES[contract.precision])
        constants[f"{name}.head"] = head
        op("Gather", f"{name}.table tokens", f"{name}.rows")  # [1, T, heads, head_dim]
        new = op("Transpose", f"{name}.rows", name.replace("past", "new"), perm=[0, 2, 1, 3])
        if dialect == "rows":
            op("Slice", f"{name} zeros span rows_axis", f"{name}.seen")
            attend(f"{name}.seen", "columns", "visible.past", f"{name}.head", layer, f"{name}.old.part")
            attend(new, "row.numbers", "visible.new", f"{name}.head", layer, f"{name}.new.part", overflows)
        else:
            present = op(
                "TensorScatter", f"{name} {new} position", name.replace("past", "present"), axis=2, mode="linear"
            )
            op("Slice", f"{present} zeros span rows_axis", f"{name}.seen")
            attend(f"{name}.seen", "columns", "visible", f"{name}.head", layer, f"{name}.part")
    op("Sum", " ".join(parts), "all")
    # All rows up to the widest step, the last one of wider passes.
    op("Greater", "width widest", "is.chunk")
    op("Neg", "width", "minus.width")
    op("Where", "is.chunk minus_one minus.width", "first.row")
    op("Slice", "all first.row far zeros", "kept")
    op("Unsqueeze", "kept zeros", "logits")

    def tensor(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [
        tensor("tokens", TensorProto.INT64, 1, "T"),
        tensor("position", TensorProto.INT64, 1),
        tensor("columns", TensorProto.INT64, "C"),
    ]
    outputs = [tensor("logits", TensorProto.FLOAT, 1, contract.rows_name, model.vocab_size)]
    side = "new" if dialect == "rows" else "present"
    for name, layer in past.items():
        inputs.append(tensor(name, element, 1, layer.num_kv_heads, contract.capacity, layer.head_dim))
        rows = "T" if dialect == "rows" else contract.capacity
        outputs.append(tensor(name.replace("past", side), element, 1, layer.num_kv_heads, rows, layer.head_dim))
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph(nodes, "micro", inputs, outputs, initializers)
    return helper.make_model(made, ir_version=11, opset_imports=[helper.make_opsetid("", 24)])
