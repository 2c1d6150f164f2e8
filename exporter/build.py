"""`specexport build`: load pair -> check -> trace -> optimize -> prove -> write -> compile."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, replace
from pathlib import Path

from ..bundle import Bundle, Contract, Role, write_manifest
from ..calibration.precision_search import write_precision
from ..calibration.weights.texts import read_texts
from ..calibration.weights.tokens import calibration_tokens
from ..errors import ParameterError
from .auto import measure_precisions
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.pair import check_capacity, check_models
from .compile import compile_bundle
from .export_model import Quantizing, export_model
from .progress import Progress, Silent, StageTime, Timed
from .proving.prove import prove
from .request.options import MAX_DIVERGENCE, BuildOptions
from .request.precision_choice import AUTO
from .rules.write import number_of_rules, write_rules
from .storage.atomic_folder import new_folder, require_space, scratch_beside
from .storage.copy_on_write import can_clone
from .storage.manifest import make_manifest, write_maps, write_text
from .storage.stage_cache import default_cache, open_cache


@dataclass(frozen=True)
class BuildReport:
    bundle: Bundle
    times: tuple[StageTime, ...]
    warnings: tuple[str, ...]


def build(
    target: str,
    draft: str | None,
    output: str | os.PathLike[str],
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    command: str = "specexport.exporter.build",
) -> BuildReport:
    """Compile `target` and `draft` (folders or hub ids) into a proven bundle at `output`.

    Without a draft, the bundle's sessions look drafts up in the text.

    Raises `ParameterError`, `CheckpointError`, `PairError`, `EngineError`, `OutputError`, `ProofError`; then nothing is
    left at `output`.
    """
    options = options or BuildOptions()
    timed = Timed(progress or Silent())
    cache = open_cache(options.cache or default_cache())
    numbers, auto = options.numbers, options.precision == AUTO
    targets = options.check(draft, str(output))
    for note in targets.notes:
        timed.note(note)
    own_texts = options.calibration_texts is not None
    texts = read_texts(options.calibration_texts) if numbers.quantized or auto else ()

    with new_folder(Path(output), options.force) as workplace:
        with timed.stage("check the pair", 1):
            models: dict[Role, Checkpoint] = {"target": Checkpoint.find(target)}
            if draft is not None:
                models["draft"] = Checkpoint.find(draft)
            translation, warnings = check_models(models, options.min_overlap)
            for model in models.values() if own_texts else ():
                calibration_tokens(model.tokenizer, texts)  # too few are told now, and not behind an export
            contract = _contract(models, options)
        for warning in warnings:
            timed.note(f"warning: {warning}")
        copied = not can_clone(cache, workplace)  # else finished stages share their blocks with the bundle
        size = sum(checkpoint.weight_bytes(contract.precision) for checkpoint in models.values())
        require_space(workplace, size * (copied + len(targets.compiled)))  # plans hold the weights again
        if auto:
            with scratch_beside(workplace) as scratch:
                allowed = (
                    MAX_DIVERGENCE if options.max_divergence is None else options.max_divergence,
                    options.min_overlap,
                )
                table = measure_precisions(
                    models, contract, translation, (texts, own_texts), *allowed, scratch, cache, timed
                )
            gc.collect()  # the sessions of what was measured
            numbers = replace(numbers, formats={"target": table.target, "draft": table.draft or "float"})
            targets = options.targets(numbers, str(output))
            write_precision(workplace, table)
        specs = {}
        for role, model in models.items():
            quantizing = Quantizing.of(numbers, role, texts, own_texts)
            specs[role] = export_model(model, role, contract, workplace, cache, timed, targets.dialects, quantizing)
        text = write_text(models["target"], workplace)
        vocabulary = write_maps(translation, specs, options.min_overlap, workplace) if translation else None
        with timed.stage("prove", len(specs) * len(specs["target"].graphs)) as step:
            proofs = prove(workplace, specs, contract, options.engines, step)
        with timed.stage("rules", number_of_rules(contract)) as step:
            rules = write_rules(workplace, contract, specs["target"].vocab_size, step)
        with timed.stage("write", 1):
            manifest = make_manifest(
                contract, specs, vocabulary, text, options.engines, rules, proofs, workplace, command
            )
            write_manifest(workplace, manifest)
            bundle = Bundle.open(workplace, check_digests=False)  # what was written must be readable
        for engine in targets.compiled:
            bundle = compile_bundle(bundle, engine, options.compiling, timed)
    return BuildReport(Bundle(Path(output), bundle.manifest), tuple(timed.times), tuple(warnings))


def _contract(models: dict[Role, Checkpoint], options: BuildOptions) -> Contract:
    capacity = check_capacity(models, options.max_seq_len)
    try:
        return Contract(
            capacity, options.max_draft_tokens, min(options.prompt_chunk, capacity), options.numbers.precision
        )
    except ValueError as error:
        raise ParameterError(
            f"--max-seq-len {capacity} and --max-draft-tokens {options.max_draft_tokens}: {error}"
        ) from None
