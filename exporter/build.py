"""`specexport build`: load pair -> check -> trace -> optimize -> prove -> write -> compile."""

from __future__ import annotations

import gc
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..bundle import Bundle, Contract, Role, write_manifest
from ..calibration.precision import write_precision
from ..calibration.weights.texts import read_texts
from ..engines.tensorrt_api import LIBRARIES
from ..engines.tensorrt_compile import CompileOptions
from ..errors import ParameterError
from .auto import measure_precisions
from .checkpoint import Checkpoint
from .compile import compile_bundle
from .contents import make_manifest, write_maps, write_text
from .model import Quantizing, export_model
from .numbers import AUTO, Numbers, choose_numbers
from .pair import check_capacity, check_models
from .progress import Progress, Silent, StageTime, Timed
from .prove import prove
from .rule_set import number_of_rules, write_rules
from .stages import default_cache, open_cache
from .targets import choose_targets, parse_version
from .workplace import new_folder, require_space, scratch_beside

# Nats; int4 moves models that take to it by 0.01 to 0.02.
MAX_DIVERGENCE = 0.02


@dataclass(frozen=True)
class BuildOptions:
    """max_seq_len None takes what the models' positions allow, at most 4096. prompt_chunk: tokens a prefill pass.

    precision: a name of `numbers.NAMES`, or `auto`, which measures and lets the target move by max_divergence nats (None: 0.02).
    draft_precision: the target's. calibration_texts: JSONL of prompts, by default a shipped set.
    min_overlap: the part of the target's tokens that a draft of another tokenizer must have. compiling: for the engines that run
    plans. tensorrt_version: the one on the device, by default that of this host.
    """

    max_seq_len: int | None = None
    max_draft_tokens: int = 4
    prompt_chunk: int = 64
    min_overlap: float = 0.5
    precision: str = "fp32"
    draft_precision: str | None = None
    max_divergence: float | None = None
    calibration_texts: Path | None = None
    engines: tuple[str, ...] = ("onnxruntime",)
    compiling: CompileOptions = field(default_factory=CompileOptions)
    tensorrt_version: str | None = None
    force: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_tokens <= 32:
            raise ParameterError(f"--max-draft-tokens is {self.max_draft_tokens}; it must be from 1 to 32")
        if self.prompt_chunk < 1:
            raise ParameterError(f"--prompt-chunk is {self.prompt_chunk}; it must be at least 1")
        if not 0 <= self.min_overlap <= 1:  # also: NaN
            raise ParameterError(f"--min-overlap is {self.min_overlap}; it must be from 0 to 1, 0.5 for half of the target's tokens")
        if not self.engines:
            raise ParameterError("no --engine is given; name at least one")
        numbers = self.numbers
        if self.calibration_texts is not None and not (numbers.quantized or self.precision == AUTO):
            raise ParameterError(f"--calibration-prompts is for quantized weights; --precision is {self.precision}")
        if self.max_divergence is not None and self.precision != AUTO:
            raise ParameterError(f"--max-divergence is for --precision auto; --precision is {self.precision}, which is taken as it is")
        if self.max_divergence is not None and not 0 <= self.max_divergence < math.inf:  # also: NaN
            raise ParameterError(f"--max-divergence is {self.max_divergence}; it must be 0 or more, in nats")
        for option, *_ in self.compiling.arguments:
            if not set(LIBRARIES) & set(self.engines):
                raise ParameterError(f"{option} is for engines that run plans; add --engine {' or --engine '.join(LIBRARIES)}")
        if self.tensorrt_version is not None:
            parse_version(self.tensorrt_version)
            if "tensorrt" not in self.engines:
                raise ParameterError("--tensorrt-version is for --engine tensorrt; add it, or leave the version away")

    @property
    def numbers(self) -> Numbers:
        return choose_numbers(self.engines, self.precision, self.draft_precision)


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

    Raises `CheckpointError`, `PairError`, `EngineError`, `OutputError`, `ProofError`; then nothing is left at `output`.
    """
    options = options or BuildOptions()
    timed = Timed(progress or Silent())
    cache = open_cache(options.cache or default_cache())
    version = parse_version(options.tensorrt_version) if options.tensorrt_version else None
    if draft is None and options.draft_precision is not None:
        raise ParameterError(f"--draft-precision is {options.draft_precision}, but there is no --draft; leave it away")
    numbers, auto = options.numbers, options.precision == AUTO
    targets = choose_targets(options.engines, numbers, options.compiling, version, str(output))
    own_texts = options.calibration_texts is not None
    texts = read_texts(options.calibration_texts) if numbers.quantized or auto else ()

    with new_folder(Path(output), options.force) as workplace:
        with timed.stage("check the pair", 1):
            models: dict[Role, Checkpoint] = {"target": Checkpoint.find(target)}
            if draft is not None:
                models["draft"] = Checkpoint.find(draft)
            translation, warnings = check_models(models, options.min_overlap)
            contract = _contract(models, options)
        for warning in warnings:
            timed.note(f"warning: {warning}")
        copied = cache.stat().st_dev != workplace.stat().st_dev  # else finished stages are linked
        size = sum(checkpoint.weight_bytes(contract.precision) for checkpoint in models.values())
        require_space(workplace, size * (copied + len(targets.compiled)))  # plans hold the weights again
        if auto:
            with scratch_beside(workplace) as scratch:
                allowed = MAX_DIVERGENCE if options.max_divergence is None else options.max_divergence, options.min_overlap
                table = measure_precisions(models, contract, translation, (texts, own_texts), *allowed, scratch, cache, timed)
            gc.collect()  # the sessions of what was measured
            numbers = replace(numbers, formats={"target": table.target, "draft": table.draft or "float"})
            targets = choose_targets(options.engines, numbers, options.compiling, version, str(output))
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
            manifest = make_manifest(contract, specs, vocabulary, text, options.engines, rules, proofs, workplace, command)
            write_manifest(workplace, manifest)
            bundle = Bundle.open(workplace, check_digests=False)  # what was written must be readable
        for engine in targets.compiled:
            bundle = compile_bundle(bundle, engine, options.compiling, timed)
    for note in targets.notes:
        timed.note(note)
    return BuildReport(Bundle(Path(output), bundle.manifest), tuple(timed.times), tuple(warnings))


def _contract(models: dict[Role, Checkpoint], options: BuildOptions) -> Contract:
    capacity = check_capacity(models, options.max_seq_len)
    try:
        return Contract(capacity, options.max_draft_tokens, min(options.prompt_chunk, capacity), options.numbers.precision)
    except ValueError as error:
        raise ParameterError(f"--max-seq-len {capacity} and --max-draft-tokens {options.max_draft_tokens}: {error}") from None
