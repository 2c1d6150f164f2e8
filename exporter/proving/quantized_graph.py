"""A quantized graph with the weights of the checkpoint that its products and tables claim.

Parts of it can be run by themselves, and all of them be replaced by products with the restored weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from torch import nn
from transformers import PreTrainedModel

from ...bundle import Contract, ModelSpec
from ...engines.base import RunGraph
from ...engines.onnxruntime.graphs import open_graph
from ...errors import ProofError
from ...runtime.proofs.parity import Exact
from ..dialects import OPSETS, Dialect
from ..kernels.fuse import DOMAIN
from ..kernels.layouts import floats_in_panels
from ..passes.clean_up import parameter_name
from ..tracing.taps import Undo
from ..weights.layers import linear_layers, parameter_names
from ..weights.recipe import LARGEST, Float32, Recipe, WeightRecipe
from .layer_arithmetic import REPORT
from .quantized_ops import STORED, TABLE, QuantizedOp, quantized_ops
from .widen import widen

NBITS = "MatMulNBits"
# The accuracy level of MatMulNBits that computes in fp32.
FP32_LEVEL = 1
# Attributes of a kernel that say how large it is.
SIZES = ("num_outputs", "num_inputs")


@dataclass(frozen=True)
class Subject:
    """A model as it was exported: in memory, with its recipe, and as graphs. name: for messages. undo: of its taps."""

    name: str
    model: PreTrainedModel
    recipe: Recipe
    spec: ModelSpec
    contract: Contract
    undo: Undo | None = None

    @property
    def arithmetic(self) -> Exact:
        """Of what is not quantized, as it is run here: in fp32 over the constants that the graph has."""
        return "fp32" if self.contract.precision == "fp32" else "widened"


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A quantized weight. transposed: the parameter is `[K, N]`. bias: of its layer, if it has one."""

    name: str
    recipe: WeightRecipe
    parameter: nn.Parameter
    transposed: bool
    bias: Float32 | None

    @property
    def shape(self) -> tuple[int, ...]:
        """`[N, K]`, or `[E, N, K]` of a stack."""
        shape = tuple(self.parameter.shape)
        return shape[::-1] if self.transposed else shape

    @property
    def matrix(self) -> Float32:
        """`[N, K]`; of a stack of experts `[E N, K]`."""
        data = self.parameter.data.flatten(0, -2)
        matrix: Float32 = (data.T if self.transposed else data).float().contiguous().numpy()
        return matrix

    @property
    def restored(self) -> Float32:
        """Quantized and dequantized, of `shape`."""
        return self.recipe.restore(self.matrix).reshape(self.shape)

    @property
    def typical_input(self) -> float:
        """The size of activations for which a static scale is chosen."""
        largest = LARGEST if self.recipe.format == "fp8" else 127
        return self.recipe.input_scale * largest / 3 if self.recipe.input_scale else 1.0


@dataclass(frozen=True)
class QuantizedGraph:
    """A graph over weights in the folder of `path`, as it is run here. weights: by the names that the graph has."""

    path: Path
    model: ir.Model
    ops: list[QuantizedOp]
    weights: Mapping[str, QuantizedWeight]

    @classmethod
    def of(cls, subject: Subject, dialect: Dialect, path: Path) -> QuantizedGraph:
        """Raises `ProofError` where not just those weights are stored in few bits that the recipe quantizes."""
        model = ir.load(path)
        ops = quantized_ops(model.graph)
        claimed = [name for op in ops for name in op.weights]
        weights = _weights(subject)
        for name in claimed:
            if name not in weights:
                raise ProofError(f"the graph stores {name} in few bits, which the recipe does not; {REPORT}")
        stored = {weights[name].name for name in claimed}
        for name in map(parameter_name, model.graph.initializers.values()):
            if name in weights and weights[name].name not in stored:
                raise ProofError(f"{name} is missing among the graph's quantized products; {REPORT}")
        if subject.contract.precision != "fp32":
            widen(model)
        return cls(path, model, ops, weights)

    @property
    def values(self) -> dict[str | None, ir.Value]:
        made = {value.name: value for node in self.model.graph for value in node.outputs}
        return {value.name: value for value in self.model.graph.inputs} | made

    @contextmanager
    def alone(self, inputs: Mapping[str, ir.DataType], output: str, fp32_kernels: bool = False) -> Iterator[RunGraph]:
        """What makes `output` of `inputs`, by itself. fp32_kernels: of products in few bits, in place of the host's."""
        values = self.values
        node = values[output].producer()
        if node is not None and node.domain == DOMAIN:
            cut = _bare(node)
        else:
            cut = ir.convenience.extract(self.model.graph, [values[name] for name in inputs], [values[output]])
        for value, dtype in zip(cut.inputs[: len(inputs)], inputs.values(), strict=True):
            value.type, value.shape = ir.TensorType(dtype), None
        cut.outputs[0].type, cut.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), None
        for node in cut if fp32_kernels else ():
            if node.op_type == NBITS:
                node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", FP32_LEVEL)
        path = self.path.with_name(f"{self.path.stem}-alone.onnx")
        try:
            ir.save(ir.Model(cut, ir_version=self.model.ir_version), path)
            yield open_graph(path)
        finally:
            path.unlink(missing_ok=True)

    def restore(self) -> None:
        """Replace every product and table by one over the restored weight, in place.

        Raises `ProofError` where anything else computes with stored integers.
        """
        graph, values = self.model.graph, self.values
        for number, op in enumerate(self.ops):
            old, tape = values[op.output], ir.tape.Tape()
            node = old.producer()
            assert node is not None
            if node.domain == DOMAIN:
                self._restore_kernel(op, node, f"restored.{number}")
                continue
            new = self._restored(op, node, values, tape, f"restored.{number}")
            for value in tape.initializers:
                graph.register_initializer(value)
            graph.insert_before(node, tape.nodes)
            new.name, new.type, new.shape, old.name = old.name, old.type, old.shape, f"{old.name}.quantized"
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            values[op.output] = new
        self.model.opset_imports.setdefault("com.microsoft", 1)
        common_passes.RemoveUnusedNodesPass()(self.model)
        for value in [*graph.inputs]:
            if value.is_initializer() and not value.uses():
                graph.inputs.remove(value)
                del graph.initializers[value.name or ""]
        for name, value in graph.initializers.items():
            if name.endswith(STORED) and value.uses():
                raise ProofError(f"the graph computes with {name} in a way that is not known; {REPORT}")

    def _restored(
        self, op: QuantizedOp, node: ir.Node, values: dict[str | None, ir.Value], tape: ir.tape.Tape, name: str
    ) -> ir.Value:
        """What takes the place of the output of `node`."""
        weight = tape.initializer(self._tensor(name, *op.weights))
        if op.form == TABLE:
            return tape.op("Gather", [weight, values[op.input]])
        if op.experts:
            axis = tape.initializer(ir.tensor([-1], name=f"{name}.axis"))
            column = tape.op("Unsqueeze", [values[op.input], axis])
            product = tape.op("MatMul", [tape.op("Gather", [weight, values[op.experts]]), column])
            return tape.op("Squeeze", [product, axis])
        product = tape.op("FusedMatMul", [values[op.input], weight], {"transB": 1}, domain="com.microsoft")
        return tape.op("Add", [product, node.inputs[2]]) if op.biased else product

    def _restore_kernel(self, op: QuantizedOp, node: ir.Node, name: str) -> None:
        """The operator of fp32 weights, with the same norm, turn and gate."""
        restored = self._tensor(name, *op.weights)
        outputs, inputs = restored.shape.numpy()
        value = floats_in_panels(name, restored.numpy, (outputs, inputs), "fp32")
        self.model.graph.register_initializer(value)
        node.op_type = "EmbeddingFloat" if op.form == TABLE else "LinearFloat"
        node.replace_input_with(1, value)
        node.replace_input_with(2, None)

    def _tensor(self, name: str, *weights: str) -> ir.LazyTensor:
        """The restored weights, one after another in their outputs, in memory only while they are written to a file."""
        of = [self.weights[weight] for weight in weights]
        shape = (sum(weight.shape[0] for weight in of), *of[0].shape[1:])
        return ir.LazyTensor(
            lambda: ir.tensor(np.concatenate([weight.restored for weight in of])),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(shape),
            name=name,
        )


def _bare(product: ir.Node) -> ir.Graph:
    """A kernel's product or table alone: without the norm, turn and gate that its operator also computes."""
    taken = list(product.inputs[1:4])
    constants = [
        value and ir.val(value.name, value.dtype, value.shape, const_value=value.const_value) for value in taken
    ]
    assert product.inputs[0] is not None
    value = ir.val(product.inputs[0].name)
    attributes = {name: product.attributes[name].as_int() for name in SIZES if name in product.attributes}
    node = ir.node(product.op_type, [value, *constants], attributes, domain=DOMAIN)
    node.outputs[0].name = product.outputs[0].name
    opsets = {"": OPSETS["kernels"], DOMAIN: 1}
    stored = [value for value in constants if value is not None]
    return ir.Graph([value], [node.outputs[0]], nodes=[node], initializers=stored, opset_imports=opsets)


def _weights(subject: Subject) -> dict[str, QuantizedWeight]:
    """The weights that the recipe quantizes, by every name of their parameters."""
    names = parameter_names(subject.model)
    layers = {layer.weight: layer for layer in linear_layers(subject.model)}
    weights = {}
    for alias, parameter in subject.model.named_parameters(remove_duplicate=False):
        name = names[id(parameter)]
        recipe, layer = subject.recipe.weights.get(name), layers.get(name)
        if recipe is not None and recipe.format != "float":
            bias = getattr(layer.module, "bias", None) if layer is not None else None
            added = None if bias is None else bias.detach().float().numpy()
            weights[alias] = QuantizedWeight(name, recipe, parameter, layer is not None and layer.transposed, added)
    return weights
