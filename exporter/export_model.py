"""One model of the pair, from checkpoint to graphs in the dialects asked for and the reference logits for their proof."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle import ELEMENT_BYTES, Contract, Family, Format, ModelSpec, Role
from ..calibration.weights.fake_quant import fake_quantized
from ..calibration.weights.fidelity import measure_fidelity, split
from ..calibration.weights.search import RECIPE_STEPS, RecipeOptions, choose
from ..calibration.weights.tokens import calibration_tokens
from ..runtime.proofs.parity import save_reference
from ..strict import parse, read_json
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.half_precision import fp32_arithmetic
from .checkpoints.memory_check import require_memory
from .dialects import Dialect
from .passes.lint import refuse_traps
from .passes.optimize import optimize, save
from .progress import Timed
from .proving.reference import record_reference
from .quantize.apply import by_every_name, quantize
from .quantize.scales import in_precision
from .quantize.stored_weights import Made
from .request.precision_choice import Numbers
from .storage.atomic_folder import require_space
from .storage.copy_on_write import clone_or_copy
from .storage.manifest import reference_path
from .storage.stage_cache import finished_stage, make_stage, stage_key
from .tracing.confidence_head import HEADED, probe_features
from .tracing.trace import probe_cache, trace

SPEC = "spec.json"
REFERENCE = "reference.npz"
# Tokens of a calibration text that the model reads at once.
LONGEST = 256


@dataclass(frozen=True)
class Quantizing:
    """How a model's weights are stored, for the engines of which family, and the texts that show what its layers are fed.

    own_texts: they are the user's, so that a static scale of activations that is as good on them may be used on a CPU.
    """

    format: Format
    family: Family
    texts: tuple[str, ...]
    own_texts: bool = False

    @classmethod
    def of(cls, numbers: Numbers, role: Role, texts: Sequence[str], own_texts: bool) -> Quantizing | None:
        """None for a model whose weights stay as they are."""
        form = numbers.formats[role]
        return cls(form, numbers.family, tuple(texts), own_texts) if form != "float" else None


def export_model(
    checkpoint: Checkpoint,
    role: Role,
    contract: Contract,
    workplace: Path,
    cache: Path,
    progress: Timed,
    dialects: tuple[Dialect, ...],
    quantizing: Quantizing | None = None,
) -> ModelSpec:
    """Put the model's graphs under `workplace/graphs` and its reference under `workplace/reference`."""
    label = f"export {role}" + (f" in {quantizing.format}" if quantizing else "")
    inputs: dict[str, Any] = dict(role=role, checkpoint=checkpoint.digest, contract=asdict(contract), dialects=dialects)
    if quantizing is not None:
        inputs |= dict(quantizing=asdict(quantizing), tokenizer=checkpoint.tokenizer.backend_tokenizer.to_str())
    key = stage_key(**inputs)
    stage = finished_stage(cache, key)
    if stage is not None:
        progress.reused(label)
    else:
        require_space(cache, checkpoint.weight_bytes(contract.precision))
        require_memory(checkpoint.fp32_bytes // ELEMENT_BYTES["fp32"], contract.precision, quantizing is not None)
        calibrating = (len(RECIPE_STEPS) + 1 + len(dialects)) * (quantizing is not None)
        with progress.stage(label, 2 + 2 * len(dialects) + 1 + calibrating) as step:
            stage = make_stage(
                cache, key, lambda folder: _export(checkpoint, role, contract, dialects, quantizing, folder, step)
            )
    spec = parse(ModelSpec, read_json(stage / SPEC) | {"source": checkpoint.source}, SPEC)
    for name in (*spec.graphs.values(), spec.weights):
        clone_or_copy(stage / Path(name).name, workplace / name)
    clone_or_copy(stage / REFERENCE, workplace / reference_path(role))
    return spec


def _export(
    checkpoint: Checkpoint,
    role: Role,
    contract: Contract,
    dialects: tuple[Dialect, ...],
    quantizing: Quantizing | None,
    folder: Path,
    step: Callable[[str], None],
) -> None:
    step("load")
    model = checkpoint.load(contract.precision)
    layers = probe_cache(model)
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    features = probe_features(model) if role == "draft" and HEADED in dialects else 0
    recipe, fidelity = None, None
    exact_widths = quantizing is not None and quantizing.family == "onnxruntime" and role == "target"
    if quantizing is not None:
        with fp32_arithmetic(model):
            used, held = split(
                calibration_tokens(
                    checkpoint.tokenizer, quantizing.texts, min(LONGEST, checkpoint.max_positions or LONGEST)
                )
            )
            chosen = RecipeOptions(static_activations=quantizing.own_texts)
            recipe = choose(model, used, quantizing.format, quantizing.family, chosen, step)
            if quantizing.family == "tensorrt":
                recipe = in_precision(recipe, contract.precision)
            step("measure fidelity")
            fidelity = measure_fidelity(model, recipe, held, quantizing.own_texts)
    step("reference logits")
    with fake_quantized(model, recipe) if recipe else nullcontext():
        reference = record_reference(model, contract, vocab_size, spare=exact_widths)
    graphs, made = {}, Made()
    for dialect in dialects:
        step(f"trace {dialect}")
        graphs[dialect] = trace(model, layers, dialect, contract, features if dialect == HEADED else 0)
        step(f"optimize {dialect}")
        optimize(graphs[dialect], dialect)
        if recipe is not None:
            step(f"quantize {dialect}")
            quantize(graphs[dialect], dialect, by_every_name(recipe, model), contract.capacity, made, exact_widths)
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
        format=quantizing.format if quantizing else "float",
        notes=recipe.notes if recipe else (),
        fidelity=fidelity,
    )
    (folder / SPEC).write_text(json.dumps(asdict(spec)))
    del model, graphs
    gc.collect()  # the graphs refer to each other in cycles, and hold the weights
