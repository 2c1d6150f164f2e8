"""One family: a tiny random model through the exporter's own pipeline, up to the proof of its graphs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from specexport.bundle import Contract
from specexport.errors import SpecExportError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.source import first_line
from specexport.exporter.context import BuildContext
from specexport.exporter.export_model import ModelExport, export_model
from specexport.exporter.progress import Silent, Timed
from specexport.exporter.proving.prove import prove
from transformers import AutoModelForCausalLM

from .sizes import tiny

CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
# unmade: this script makes no tiny model of it, which says nothing of the exporter.
Status = Literal["proved", "refused", "unmade"]


@dataclass(frozen=True)
class Outcome:
    """reason: one line, empty where the family is proved."""

    status: Status
    reason: str = ""


def attempt(model_type: str) -> Outcome:
    """Export a tiny random model of the family and prove its graphs against transformers."""
    with tempfile.TemporaryDirectory(prefix="family-") as name:
        folder = Path(name)
        try:
            save_tiny(model_type, folder / "checkpoint")
        except Exception as error:  # whatever a family's own code raises
            return Outcome("unmade", f"{type(error).__name__}: {first_line(error)}")
        try:
            _prove(folder)
        except SpecExportError as error:
            return Outcome("refused", str(error).replace(str(folder / "checkpoint"), model_type))
    return Outcome("proved")


def save_tiny(model_type: str, folder: Path) -> None:
    """Large weights, norms not 1, biases not 0, so that the logits depend visibly on every position."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny(model_type))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)


def _prove(folder: Path) -> None:
    workplace = folder / "bundle"
    for place in ("graphs", "reference"):
        (workplace / place).mkdir(parents=True)
    checkpoint = Checkpoint.find(str(folder / "checkpoint"))
    context = BuildContext(CONTRACT, workplace, folder / "cache", Timed(Silent()))
    spec = export_model(ModelExport(checkpoint, "target", ("ort",)), context)
    prove(workplace, {"target": spec}, CONTRACT, ("onnxruntime",), lambda step: None)
