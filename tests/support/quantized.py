"""A model under a plain recipe, exported and recorded without a build, so that its graph can be damaged and proved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
from specexport.bundle import Contract, Format, LayerProof, ModelSpec, Precision
from specexport.engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import ORT_DIALECTS, Dialect
from specexport.exporter.kernels.products import use_kernels
from specexport.exporter.passes.optimize import optimize, save
from specexport.exporter.proving.prove import continued_logits, record_reference
from specexport.exporter.proving.prove_layers import ReferenceLogits, prove_layers
from specexport.exporter.proving.quantized_graph import Subject
from specexport.exporter.quantize.apply import by_every_name, quantize
from specexport.exporter.tracing.trace import trace
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.layers import linear_layers, tables
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from transformers import PreTrainedModel

from support.hybrids import save_hybrid
from support.recipes import in_precision
from support.tiny import CONTRACT, Exported, layers_of

Damage = Callable[[ir.Model], None]


def load(checkpoint: Path, precision: Precision = "fp32") -> PreTrainedModel:
    return find_checkpoint(str(checkpoint)).load(precision)


def plain_recipe(model: PreTrainedModel, form: Format, dialect: Dialect, block: int = 32) -> Recipe:
    """One for every matrix, as the family of the dialect stores them."""
    ours = dialect in ORT_DIALECTS
    own = WeightRecipe(
        form,
        block=block if form == "int4" else 0,
        limit=64 if dialect == "ort" else 127,
        signed=ours and form == "int4",
        input_scale=None if ours or form == "int4" else 0.05,
    )
    names = {layer.weight for layer in linear_layers(model)} | set(tables(model))
    if form == "fp8":
        names -= set(tables(model)) - {layer.weight for layer in linear_layers(model)}
    return Recipe(dict.fromkeys(sorted(names), own))


class Quantized:
    """The graph of a model in one dialect, and what it is proved against."""

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        form: Format,
        dialect: Dialect,
        contract: Contract,
        recipe: Recipe | None = None,
        text: tuple[int, ...] = (),
    ) -> None:
        self.folder, self.dialect = folder, dialect
        recipe = recipe or plain_recipe(model, form, dialect)
        if dialect not in ORT_DIALECTS:
            recipe = in_precision(recipe, contract.precision)
        layers, size = layers_of(model, (dialect,)), int(model.get_output_embeddings().weight.shape[0])
        has_states = any(layer.states for layer in layers)
        with fake_quantized(model, recipe):
            reference = record_reference(model, contract, size, 1, text, has_states)
        exact = continued_logits(model, [entry.step for entry in reference], has_states)
        self.recorded = ReferenceLogits(tuple(reference), tuple(exact))
        graph = trace(model, layers, dialect, contract)
        optimize(graph, dialect)
        named = by_every_name(recipe, model)
        if dialect == "kernels":
            use_kernels(graph, named, contract.capacity)
        else:
            quantize(graph, dialect, named, contract.capacity, {}, exact_widths=dialect == "ort")
        folder.mkdir(parents=True, exist_ok=True)
        paths, weights = save({dialect: graph}, folder, "model")
        spec = ModelSpec("", "", "", 0, size, layers, dict(paths), weights, form, (), None, self.recorded.rounding)
        self.path = folder / paths[dialect]
        self.subject = Subject("target", model, recipe, spec, contract)

    def decoder(self, keeps_open: bool = False) -> OrtDecoder:
        options = DecoderOptions(1, keeps_open=keeps_open)
        return OrtDecoder(self.path, self.subject.spec, self.subject.contract, self.dialect, options)

    def exported(self) -> Exported:
        return Exported(self.folder, self.subject.spec, list(self.recorded.reference), self.subject.contract, 0)

    def prove(self, damage: Damage | None = None) -> LayerProof:
        if damage is None:
            return prove_layers(self.subject, self.dialect, self.path, self.recorded)
        model = ir.load(self.path)
        damage(model)
        path = self.path.with_name("damaged.onnx")
        ir.save(model, path)
        return prove_layers(self.subject, self.dialect, path, self.recorded)


def quantized_hybrid(folder: Path, kind: str, form: Format, noise: float = 0.0) -> Quantized:
    """In blocks that its narrow layers have."""
    model = load(save_hybrid(folder / "checkpoint", kind, noise))
    return Quantized(folder / "graphs", model, form, "ort", CONTRACT, plain_recipe(model, form, "ort", block=16))


def stored(model: ir.Model, layer: str, *endings: str) -> ir.Value:
    """The layer's initializer that is called one of `endings`, merged with others' or not."""
    names = [name for name in model.graph.initializers if layer in name and name.rpartition(".")[2] in endings]
    return model.graph.initializers[names[0]]


def change(value: ir.Value, what: Callable[[np.ndarray], np.ndarray]) -> None:
    """In memory: the file of weights stays as it is."""
    tensor = value.const_value
    assert tensor is not None
    array = tensor.numpy()
    changed = np.ascontiguousarray(what(array.copy()).astype(array.dtype))
    assert changed.tobytes() != array.tobytes()
    value.const_value = ir.Tensor(changed, dtype=tensor.dtype, name=value.name)


def scale_off(layer: str) -> Damage:
    return lambda model: change(stored(model, layer, "scales", "scale"), lambda scales: scales * 1.1)


def groups_swapped(layer: str) -> Damage:
    """Blocks where there are several, else outputs."""
    return lambda model: change(stored(model, layer, "scales", "scale"), lambda scales: np.roll(scales, 1, axis=-1))


def block_transposed(layer: str, size: int = 16) -> Damage:
    """Of panels, two groups of inputs change places."""

    def transposed(values: np.ndarray) -> np.ndarray:
        if values.ndim == 4:
            values[0, 0, :2] = values[0, 0, 1::-1].copy()
            return values
        wide = np.stack([values & 15, values >> 4], -1).reshape(len(values), -1) if values.dtype == np.uint8 else values
        wide[:size, :size] = wide[:size, :size].T.copy()
        return (wide[:, ::2] | (wide[:, 1::2] << 4) if values.dtype == np.uint8 else wide).reshape(values.shape)

    return lambda model: change(stored(model, layer, "int8", "int4", "fp8"), transposed)


def bias_missing(bias: str) -> Damage:
    return lambda model: change(stored(model, bias, "bias"), np.zeros_like)


def table_off_by_one(model: ir.Model) -> None:
    """Of the table that tokens are looked up in, whole rows, in panels as many as these have: values and scales."""
    for node in model.graph:
        panels = node.op_type.startswith("Embedding")
        value = node.inputs[panels] if panels or node.op_type in ("Gather", "GatherBlockQuantized") else None
        if value is not None and value.producer() is not None:
            value = value.producer().inputs[0]  # type: ignore[union-attr]
        if value is not None and value.is_initializer() and (value.name or "").endswith((".int8", ".int4", ".fp8")):
            name = value.name or ""
            scales = [f"{name}.scales", *(f"{name.rpartition('.')[0]}.{ending}" for ending in ("scale", "row_scales"))]
            for found in (model.graph.initializers.get(each) for each in (name, *scales)):
                if found is not None:
                    count = 16 if panels and len(found.shape or ()) == 1 else 1
                    change(found, lambda rows, count=count: np.roll(rows, count, axis=0))
            return
    raise AssertionError("no table")
