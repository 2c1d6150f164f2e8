"""Every graph of a bundle against the Hugging Face model, before the bundle is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..bundle import Contract, ModelSpec, Proof, Role
from ..engines.onnxruntime_cpu import OrtDecoder
from ..runtime.parity import load_reference, prove_decoder
from .model import reference_path


def prove(workplace: Path, specs: dict[Role, ModelSpec], contract: Contract, step: Callable[[str], None]) -> tuple[Proof, ...]:
    """Run every dialect of every model on ONNX Runtime, one at a time. Raises `ProofError` at the first mismatch."""
    proofs = []
    for role, spec in specs.items():
        reference = load_reference(workplace / reference_path(role))
        for dialect, graph in spec.graphs.items():
            step(f"{role} {dialect}")
            decoder = OrtDecoder(workplace / graph, spec, contract)
            proofs.append(prove_decoder(decoder, reference, "onnxruntime", dialect, role, contract.precision))
            del decoder  # its memory, before the next one asks for as much
    return tuple(proofs)
