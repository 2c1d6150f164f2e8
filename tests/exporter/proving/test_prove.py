"""The proof of a build: what is run as it is, what is widened, and that nothing of it stays behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specexport.bundle import Proof
from specexport.errors import ProofError
from specexport.exporter.proving.prove import prove
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE, ReferenceStep
from specexport.runtime.proofs.reference_file import save_reference
from support.pair import Pair
from support.refusals import refused
from support.tiny import CONTRACT, Exported, export_cached

AS_IS, WIDENED = "onnxruntime", "onnxruntime, widened"


@pytest.fixture(scope="module")
def half(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    contract = replace(CONTRACT, precision="fp16")
    return export_cached(pair.target, tmp_path_factory.mktemp("half"), ("onnx", "ort"), contract)


def proofs_of(exported: Exported, engines: tuple[str, ...], folder: Path) -> dict[str, Proof]:
    """By dialect. The reference goes to `folder`, which is all that a proof needs beside the graphs."""
    (folder / "reference").mkdir()
    save_reference(folder / "reference/target.npz", exported.reference)
    spec = replace(
        exported.spec, graphs={dialect: str(exported.folder / name) for dialect, name in exported.spec.graphs.items()}
    )
    spec = replace(spec, reference="reference/target.npz")
    found = prove(folder, "target", spec, exported.contract, engines, lambda step: None)
    return {proof.dialect: proof for proof in found.proofs}


@pytest.mark.parametrize(("engines", "ort"), [(("onnxruntime", "tensorrt"), AS_IS), (("tensorrt",), WIDENED)])
def test_fp16_is_run_as_it_is_where_that_is_what_will_run(
    engines: tuple[str, ...], ort: str, half: Exported, tmp_path: Path
) -> None:
    found = proofs_of(half, engines, tmp_path)
    assert (found["onnx"].engine, found["ort"].engine) == (WIDENED, ort)
    for proof in found.values():
        assert proof.tolerance == LOGIT_TOLERANCE["fp16" if proof.engine == AS_IS else "widened"]
        assert (proof.max_error > 1e-4) == (proof.engine == AS_IS)  # rounding shows


def test_a_proof_that_fails_leaves_nothing_behind(half: Exported, tmp_path: Path) -> None:
    wrong = [
        ReferenceStep(entry.step, entry.logits + 0.1 * entry.logits.std())
        for entry in half.reference
        if entry.step.rows
    ]
    before = sorted(half.folder.iterdir())
    with refused(ProofError, "config.json", "0.02"):
        proofs_of(replace(half, reference=wrong), ("tensorrt",), tmp_path)
    assert sorted(half.folder.iterdir()) == before
