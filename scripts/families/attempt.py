"""One family: a tiny random model through the exporter's own pipeline, up to the proof of its graphs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from specexport.bundle import Contract
from specexport.editing.progress import Silent, Timed
from specexport.engines.base import Decoder
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.errors import ProofError, SpecExportError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.export_model import ModelExport, export_model
from specexport.exporter.options import BuildContext
from specexport.exporter.proving.prove import prove
from transformers import AutoModelForCausalLM

from .sizes import tiny

CONTRACT = Contract(capacity=64, max_draft_tokens=8, prompt_chunk=16, precision="fp32")
DIALECT: Dialect = "kernels"
# failed: there is a graph, but its logits differ from the model's. unmade: this script cannot make a tiny model of the
# family, which says nothing about the exporter.
Status = Literal["proved", "refused", "failed", "unmade"]


@dataclass(frozen=True)
class Outcome:
    """reason: one line, empty if the family is proved. exact: of a proved one, see `has_exact_rows`."""

    status: Status
    reason: str = ""
    exact: bool = False


def attempt(model_type: str) -> Outcome:
    """Export a tiny random model of the family and prove its graphs against transformers."""
    with tempfile.TemporaryDirectory(prefix="family-") as name:
        folder = Path(name)
        try:
            save_tiny(model_type, folder / "checkpoint")
        except Exception as error:  # the family's own code may raise anything
            return Outcome("unmade", f"{type(error).__name__}: {' '.join(str(error).split())}")
        try:
            exact = _prove(folder)
        except SpecExportError as error:
            status: Status = "failed" if isinstance(error, ProofError) else "refused"
            return Outcome(status, str(error).replace(str(folder / "checkpoint"), model_type))
    return Outcome("proved", exact=exact)


def save_tiny(model_type: str, folder: Path) -> None:
    """Save a tiny random model with large weights, norms other than 1 and biases other than 0, so that the logits
    depend visibly on every position.

    The padding token gets an embedding too: for zeros a router scores all experts the same, and topk picks any of them.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny(model_type))
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, torch.nn.Embedding) and part.padding_idx is not None:
                part.weight[part.padding_idx].normal_(std=0.2)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)


def _prove(folder: Path) -> bool:
    """Returns whether rows are exact."""
    staging_dir = folder / "bundle"
    for place in ("graphs", "reference"):
        (staging_dir / place).mkdir(parents=True)
    checkpoint = find_checkpoint(str(folder / "checkpoint"))
    context = BuildContext(CONTRACT, staging_dir, folder / "cache", Timed(Silent()))
    spec = export_model(ModelExport(checkpoint, "target", (DIALECT,)), context)
    prove(staging_dir, "target", spec, CONTRACT, ("onnxruntime",), lambda step: None)
    decoder = OrtDecoder(staging_dir / spec.graphs[DIALECT], spec, CONTRACT, DIALECT)
    return has_exact_rows(decoder, CONTRACT)


def has_exact_rows(decoder: Decoder, contract: Contract) -> bool:
    """Whether rows have the same bits in passes of one row, in wider ones, and behind a prompt in chunks."""
    count, start = contract.capacity - contract.widest_step, contract.capacity // 2
    tokens = np.random.default_rng(0).integers(2, decoder.vocab_size, count).tolist()

    def rows(width: int, chunk: int) -> NDArray[np.float32]:
        decoder.overwrite_rows(0, 1e4)
        for place in range(0, start, chunk):
            decoder.feed(tokens[place : min(place + chunk, start)], place)
        steps = range(start, count, width)
        return np.concatenate([decoder.step(tokens[place : place + width], place).copy() for place in steps])

    wanted = rows(1, 1)
    others = [(width, 1) for width in range(2, contract.widest_step + 1)] + [(1, chunk) for chunk in (16, 10, 7, 3)]
    return all(np.array_equal(rows(*other), wanted) for other in others)
