"""One model of the pair, from checkpoint to graphs in the dialects asked for and the reference logits for their proof."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..bundle import Contract, ModelSpec, Role
from ..runtime.parity import save_reference
from ..strict import parse, read_json
from .attention import Dialect
from .checkpoint import Checkpoint
from .graphs import optimize, save
from .head import HEADED, probe_features
from .lint import refuse_traps
from .progress import Timed
from .reference import record_reference
from .stages import finished_stage, link_or_copy, make_stage, stage_key
from .trace import probe_cache, trace
from .workplace import require_space

SPEC = "spec.json"
REFERENCE = "reference.npz"


def export_model(
    checkpoint: Checkpoint,
    role: Role,
    contract: Contract,
    workplace: Path,
    cache: Path,
    progress: Timed,
    dialects: tuple[Dialect, ...],
) -> ModelSpec:
    """Put the model's graphs under `workplace/graphs` and its reference under `workplace/reference`."""
    label = f"export {role}"
    key = stage_key(role=role, checkpoint=checkpoint.digest, contract=asdict(contract), dialects=dialects)
    stage = finished_stage(cache, key)
    if stage is not None:
        progress.reused(label)
    else:
        require_space(cache, checkpoint.weight_bytes(contract.precision))
        with progress.stage(label, 2 + 2 * len(dialects) + 1) as step:
            stage = make_stage(cache, key, lambda folder: _export(checkpoint, role, contract, dialects, folder, step))
    spec = parse(ModelSpec, read_json(stage / SPEC) | {"source": checkpoint.source}, SPEC)
    for name in (*spec.graphs.values(), spec.weights):
        link_or_copy(stage / Path(name).name, workplace / name)
    link_or_copy(stage / REFERENCE, workplace / reference_path(role))
    return spec


def reference_path(role: Role) -> str:
    return f"reference/{role}.npz"


def _export(
    checkpoint: Checkpoint, role: Role, contract: Contract, dialects: tuple[Dialect, ...], folder: Path, step: Callable[[str], None]
) -> None:
    step("load")
    model = checkpoint.load(contract.precision)
    layers = probe_cache(model)
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    features = probe_features(model) if role == "draft" and HEADED in dialects else 0
    step("reference logits")
    reference = record_reference(model, contract, vocab_size)
    graphs = {}
    for dialect in dialects:
        step(f"trace {dialect}")
        graphs[dialect] = trace(model, layers, dialect, contract, features if dialect == HEADED else 0)
        step(f"optimize {dialect}")
        optimize(graphs[dialect], dialect)
        refuse_traps(graphs[dialect], dialect, checkpoint.architecture)
    step("write")
    paths, weights = save(graphs, folder, role)
    save_reference(folder / REFERENCE, reference)
    spec = ModelSpec(
        source=checkpoint.source,
        architecture=checkpoint.architecture,
        checkpoint_sha256=checkpoint.digest,
        num_parameters=model.num_parameters(),
        vocab_size=vocab_size,
        layers=layers,
        graphs={dialect: f"graphs/{name}" for dialect, name in paths.items()},
        weights=f"graphs/{weights}",
        features=features,
    )
    (folder / SPEC).write_text(json.dumps(asdict(spec)))
    del model, graphs
    gc.collect()  # the graphs refer to each other in cycles, and hold the weights
