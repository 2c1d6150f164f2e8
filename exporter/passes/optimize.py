"""From traced graphs to files: optimized for their dialect, all over one file of weights as the checkpoint has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnxscript import optimizer
from onnxscript.rewriter import rewrite
from onnxscript.rewriter.ort_fusions.rms_normalization import fuse_rms_normalization
from onnxscript.rewriter.ort_fusions.skip_normalization import fuse_skip_layer_normalization
from onnxscript.rewriter.rules import common as rules

from ..dialects import ORT_DIALECTS, Dialect
from .clean_up import CLEAN_UP, PREFIX, adopt_constants, name_nodes
from .cuda_graphs import keep_counts_on_host, keep_lengths_on_device, narrow_splits
from .fusions import (
    expand_rms_normalization,
    fuse_skip_rms_normalization,
    fuse_transpose_into_matmul,
    write_roots_out,
)

# Tensors from this size on live in the weights file.
EXTERNAL_BYTES = 1024
FOLDED_ELEMENTS = 4096
# Larger tensors begin at a page: kernels read them where the file is mapped, and vectors across cache lines are slow.
ALIGNED_BYTES, PAGE = 16384, 4096
# Not slice_split_rule: it never fires on traced slices, which have steps, and its time grows with the square of nodes.
EXACT_RULES = (
    rules.no_op_cast_rule,
    rules.no_op_expand_rule,
    rules.no_op_transpose_rule,
    rules.reshape_reshape_rule,
    rules.transpose_transpose_rule,
    rules.unsqueeze_unsqueeze_rule,
    rules.squeeze_reshape_1d_rule,
    rules.collapse_slice_rule,
    rules.collapse_slice2_rule,
    rules.no_op_static_scatter_nd_rule,
    rules.no_op_dynamic_scatter_nd_rule,
    rules.materialize_reshape_shape_rule,
)


def optimize(model: ir.Model, dialect: Dialect) -> None:
    """Fold small constants; for ONNX Runtime also fuse norms and transposed weights.

    Weights stay as they are stored. In the dialect `kernels`, norms are left as one operator each.
    """
    common_passes.InlinePass()(model)
    _fold(model)
    if dialect in ORT_DIALECTS:
        fuses = (
            write_roots_out,
            fuse_rms_normalization,
            fuse_skip_rms_normalization,
            fuse_skip_layer_normalization,
            fuse_transpose_into_matmul,
        )
        for change in fuses:
            change(model)
        if dialect == "ort":
            # the last three: what CUDA graphs need
            for change in (expand_rms_normalization, keep_lengths_on_device, keep_counts_on_host, narrow_splits):
                change(model)
        model.opset_imports.setdefault("com.microsoft", 1)
        _fold(model)
    name_nodes(model)
    # Stack traces hold the paths of the building machine.
    common_passes.ClearMetadataAndDocStringPass()(model)
    outputs = set(model.graph.outputs)
    for node in model.graph:
        for value in node.outputs:
            if value not in outputs:
                value.shape = None  # traced with T rows of logits, see tracing/kept_rows.py


def save(models: dict[str, ir.Model], folder: Path, stem: str) -> tuple[dict[str, str], str]:
    """Write each as `{stem}-{name}.onnx`, and one `{stem}.weights`; returns the graphs by name and the weights file.

    A weight is stored once, under the name it has in the checkpoint, whatever graphs use it.
    """
    weights = f"{stem}.weights"
    tensors: list[ir.TensorProtocol] = []
    places: dict[ir.Value, int] = {}
    by_name: dict[str, list[int]] = {}
    for model in models.values():
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < EXTERNAL_BYTES:
                continue
            known = by_name.setdefault(name, [])
            # Constants that tracing makes are numbered, so one name may mean different tensors in the two graphs.
            place = next((place for place in known if _same(tensors[place], tensor)), None)
            if place is None:
                place = len(tensors)
                known.append(place)
                tensors.append(tensor)
            places[value] = place
    stored = ir.external_data.convert_tensors_to_external(
        tensors, folder, weights, alignment=PAGE, align_threshold=ALIGNED_BYTES
    )
    graphs: dict[str, str] = {}
    for name, model in models.items():
        for value in model.graph.initializers.values():
            if value in places:
                value.const_value = stored[places[value]]
        graphs[name] = f"{stem}-{name}.onnx"
        ir.save(model, folder / graphs[name])
    return graphs, weights


def _is_matrix(value: ir.Value) -> bool:
    """Whether the value is a matrix of the checkpoint, however small."""
    return (
        value.is_initializer()
        and (value.name or "").startswith(PREFIX)
        and value.const_value is not None
        and len(value.const_value.shape) > 1
    )


def _same(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    ours, theirs = one.numpy(), other.numpy()
    # Weights of one module lie at one address; only constants are ever compared by content.
    return bool(ours.__array_interface__ == theirs.__array_interface__ or np.array_equal(ours, theirs))


def _fold(model: ir.Model) -> None:
    """Constant folding and exact simplifications. Weights stay: their transposes would be written out, under no name.

    The optimizer's default rules also drop `x + c` for any |c| <= 1e-8, which some models' norms have as epsilon.
    """

    def small(node: ir.Node) -> bool | None:
        known = [value for value in node.inputs if value is not None and value.const_value is not None]
        large = any(value.const_value.size > FOLDED_ELEMENTS for value in known if value.const_value is not None)
        return False if large or any(_is_matrix(value) for value in known) else None

    limits = dict(input_size_limit=FOLDED_ELEMENTS, output_size_limit=FOLDED_ELEMENTS)
    for _ in range(2):
        optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=small, **limits)
        rewrite(model, EXACT_RULES)
        adopt_constants(model)
    CLEAN_UP(model)
