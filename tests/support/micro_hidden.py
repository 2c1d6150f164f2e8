"""Micro models of a target that shows hidden states and a draft that reads them, through a graph that fuses.

hidden     of the target: the first columns of its logits, a function of all tokens so far
cache row  of the draft: that of its token, and the hidden states that the row reads times a matrix
feedback   of the draft: the first columns of its logits
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from specexport.bundle import FEEDBACK, FUSED, HIDDEN, Bundle, Contract, Reads, SharedVocabulary
from specexport.engines.base import Engine, OpenedDraft
from specexport.engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from specexport.engines.onnxruntime.graphs import open_graph

from support.doubles import with_models
from support.micro import VOCAB, Micro, graph, micro_bundle

TAPS, TAP_WIDTH, WIDTH = (1, 3, -1), 2, 5
GIVEN = len(TAPS) * TAP_WIDTH
FUSE = "graphs/draft-fuse-onnx.onnx"
# What a draft of a cut vocabulary proposes, not in order.
KEPT = [20, 0, 3, 1, 22, 5, 6, 7, 9, 10, 12, 14, 15, 17, 18, 2]


@dataclass(frozen=True)
class Surgery:
    """Adds to the graph of a micro model."""

    model: onnx.ModelProto

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def op(self, kind: str, inputs: str, output: str, at: int | None = None, **attributes: Any) -> str:
        """at: the place among the nodes, by default the end."""
        node = helper.make_node(kind, inputs.split(), [output], **attributes)
        self.model.graph.node.insert(len(self.model.graph.node) if at is None else at, node)
        return output

    def columns(self, source: str, count: int, output: str) -> None:
        """The first columns of `[rows, vocab]`, as an output `[1, rows, count]`."""
        columns = self.constant(f"{output}.columns", np.arange(count))
        self.op("Gather", f"{source} {columns}", f"{output}.flat", axis=1)
        self.op("Unsqueeze", f"{output}.flat zeros", output)

    def output(self, name: str, *shape: int | str) -> None:
        self.model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def target_graph(model: Micro, contract: Contract, dialect: str = "onnx") -> onnx.ModelProto:
    surgery = Surgery(graph(model, contract, dialect))
    surgery.columns("all", GIVEN, HIDDEN)
    surgery.output(HIDDEN, 1, "T", GIVEN)
    return surgery.model


def draft_graph(
    model: Micro, contract: Contract, kept: list[int] | None = None, dialect: str = "onnx"
) -> onnx.ModelProto:
    surgery, rng = Surgery(graph(model, contract, dialect)), np.random.default_rng(5)
    nodes = surgery.model.graph.node
    surgery.model.graph.input.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, (1, "T", WIDTH)))
    weight = next(value for value in surgery.model.graph.initializer if value.name == "weight")
    shifted = np.roll(model.weight(contract.capacity), -1)  # row i is of the token that is the target's row i + 1
    weight.CopyFrom(numpy_helper.from_array(shifted, "weight"))
    for name, layer in model.spec("draft").cache_names("past"):
        place = next(index for index, node in enumerate(nodes) if node.output[0] == f"{name}.rows")
        nodes[place].output[0] = f"{name}.of.token"
        size = layer.num_kv_heads * layer.head_dim
        matrix = surgery.constant(f"{name}.reads", (rng.integers(-4, 5, (WIDTH, size)) / 256).astype(np.float32))
        shape = surgery.constant(f"{name}.reads.shape", np.array([1, -1, layer.num_kv_heads, layer.head_dim]))
        surgery.op("MatMul", f"{HIDDEN} {matrix}", f"{name}.read", place + 1)
        surgery.op("Reshape", f"{name}.read {shape}", f"{name}.of.hidden", place + 2)
        surgery.op("Add", f"{name}.of.token {name}.of.hidden", f"{name}.rows", place + 3)
    surgery.columns("kept", WIDTH, f"{FEEDBACK}.whole")
    tenth = surgery.constant("tenth", np.array(0.1, np.float32))
    surgery.op("Mul", f"{FEEDBACK}.whole {tenth}", FEEDBACK)
    surgery.output(FEEDBACK, 1, contract.rows_name, WIDTH)
    if kept is not None:
        last = next(node for node in nodes if node.output[0] == "logits")
        last.output[0] = "logits.whole"
        columns = surgery.constant("logits.columns", np.array(kept))
        surgery.op("Gather", f"logits.whole {columns}", "logits", axis=2)
        logits = next(value for value in surgery.model.graph.output if value.name == "logits")
        logits.type.tensor_type.shape.dim[2].dim_value = len(kept)
    return surgery.model


def fuse_graph() -> onnx.ModelProto:
    matrix = (np.random.default_rng(6).integers(-4, 5, (GIVEN, WIDTH)) / 16).astype(np.float32)
    made = helper.make_graph(
        [helper.make_node("MatMul", [HIDDEN, "matrix"], [FUSED])],
        "fuse",
        [helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, (1, "T", GIVEN))],
        [helper.make_tensor_value_info(FUSED, TensorProto.FLOAT, (1, "T", WIDTH))],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    return helper.make_model(made, ir_version=11, opset_imports=[helper.make_opsetid("", 24)])


def hidden_bundle(
    root: Path,
    contract: Contract,
    kept: list[int] | None = None,
    target: Micro | None = None,
    noise: float = 2.0,
    dialect: str = "onnx",
) -> Bundle:
    """kept: what the draft proposes, by default all."""
    models = {"target": target or Micro(), "draft": Micro(noise=noise)}
    bundle = micro_bundle(root, contract, models["target"], models["draft"], dialect=dialect)
    onnx.save(target_graph(models["target"], contract, dialect), root / bundle.manifest.target.graphs[dialect])
    first = bundle.manifest.drafts[0]
    onnx.save(draft_graph(models["draft"], contract, kept, dialect), root / first.model.graphs[dialect])
    onnx.save(fuse_graph(), root / FUSE)
    size = VOCAB if kept is None else len(kept)
    specs: dict[Any, Any] = {"target": replace(bundle.manifest.target, taps=TAPS, tap_width=TAP_WIDTH)}
    reads = Reads("eagle3", TAPS, WIDTH, {dialect: FUSE})
    specs["draft"] = replace(first.model, reads=reads, vocab_size=size)
    manifest = with_models(bundle.manifest, specs)
    if kept is not None:
        maps = SharedVocabulary("tokenizer/maps.npz", size, VOCAB, size)
        shared = np.stack([np.array(kept), np.arange(size)])
        (root / maps.maps).parent.mkdir(exist_ok=True)
        np.savez(root / maps.maps, to_draft=np.arange(VOCAB), shared=shared)
        manifest = replace(manifest, drafts=(replace(manifest.drafts[0], shared_vocabulary=maps),))
    return replace(bundle, manifest=manifest)


def open_hidden(bundle: Bundle) -> tuple[OrtDecoder, OrtDecoder]:
    """Target and draft of their own on ONNX Runtime."""
    manifest, contract = bundle.manifest, bundle.manifest.contract
    draft = manifest.drafts[0].model
    ((dialect, graph),) = manifest.target.graphs.items()
    target = OrtDecoder(bundle.path(graph), manifest.target, contract, dialect)
    options = DecoderOptions(fuse=open_graph(bundle.path(FUSE), 1))
    return target, OrtDecoder(bundle.path(draft.graphs[dialect]), draft, contract, dialect, options)


def host_hidden_engine(bundle: Bundle) -> Engine:
    target, draft = open_hidden(bundle)
    return Engine("host", "onnx", target, OpenedDraft(draft, reader=draft.reader), taps=target.taps)
