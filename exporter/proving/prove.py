"""Every graph of a bundle against the Hugging Face model, before the bundle is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ...bundle import Contract, ModelSpec, Proof, Role
from ...engines.onnxruntime.cpu import DIALECT, NAME, OrtDecoder
from ...runtime.proofs.parity import Arithmetic, Rounding, arithmetic, load_reference, prove_decoder
from ...runtime.proofs.tree_parity import prove_trees
from .widen import widen


def prove(
    workplace: Path,
    role: Role,
    spec: ModelSpec,
    contract: Contract,
    engines: tuple[str, ...],
    step: Callable[[str], None],
) -> ModelSpec:
    """Run every dialect of a model on ONNX Runtime, and return it with the proofs. Raises `ProofError` at the first
    mismatch.

    What ONNX Runtime will run for one of the `engines` is run as it is; other graphs in half precision, and those
    that are quantized for TensorRT, are widened to fp32. Of graphs that round activations, which were proved layer by
    layer when they were exported, this is the end-to-end divergence.
    """
    proofs: list[Proof] = []
    reference, kept = load_reference(workplace / spec.reference), contract.of(role)
    for dialect, graph in spec.graphs.items():
        step(f"{role} {dialect}")
        path = workplace / graph
        kind = arithmetic(spec, contract)
        if kind == "fp32" or (dialect == DIALECT and (spec.format != "float" or (NAME in engines and kind == "fp16"))):
            decoder = OrtDecoder(path, spec, kept, dialect=dialect)
            proofs.append(prove_decoder(decoder, reference, NAME, dialect, role, kind))
            if kept.tree_rows and not isinstance(kind, Rounding):
                proofs.append(prove_trees(decoder, reference, kept, (NAME, dialect), kind))
        else:
            with widened(path) as wide:
                decoder = OrtDecoder(wide, spec, replace(kept, precision="fp32"), dialect=dialect)
                rounded: Arithmetic = "widened"
                if spec.rounding is not None and _rounds(path):
                    rounded = Rounding(spec.rounding, "fp32" if contract.precision == "fp32" else "widened")
                proofs.append(prove_decoder(decoder, reference, f"{NAME}, widened", dialect, role, rounded))
                if kept.tree_rows:
                    proofs.append(prove_trees(decoder, reference, kept, (f"{NAME}, widened", dialect), "widened"))
        del decoder  # its memory, before the next one asks for as much
    return replace(spec, proofs=tuple(proofs))


def _rounds(path: Path) -> bool:
    """Whether the graph rounds activations, as int8 and fp8 do, and int4 where some layers are kept in int8."""
    return any(node.op_type == "QuantizeLinear" for node in ir.load(path).graph)


@contextmanager
def widened(path: Path) -> Iterator[Path]:
    """A file next to `path` with the same graph in fp32, over the same weights, while the context lasts."""
    model = ir.load(path)
    widen(model)
    wide = path.with_name(f"{path.stem}-widened.onnx")
    try:
        ir.save(model, wide)
        yield wide
    finally:
        wide.unlink(missing_ok=True)
