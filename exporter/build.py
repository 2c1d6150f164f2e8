"""`specexport build`: load pair -> check -> trace -> optimize -> prove -> write -> compile."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ..bundle import (
    PRECISIONS,
    SCHEMA_VERSION,
    Bundle,
    Contract,
    Manifest,
    ModelSpec,
    Precision,
    Proof,
    Role,
    RuleSpec,
    SharedVocabulary,
    TextSpec,
    list_files,
    write_manifest,
)
from ..engines.tensorrt_api import LIBRARIES
from ..engines.tensorrt_compile import CompileOptions
from ..errors import PairError, ParameterError
from .checkpoint import Checkpoint
from .compile import compile_bundle
from .model import export_model, reference_path
from .packages import package_versions
from .pair import check_capacity, check_models
from .progress import Progress, Silent, StageTime, Timed
from .prove import prove
from .rule_set import number_of_rules, write_rules
from .stages import default_cache, open_cache
from .targets import choose_targets, parse_version
from .vocabulary import Translation
from .workplace import new_folder, require_space

MAPS = "tokenizer/shared_vocabulary.npz"


@dataclass(frozen=True)
class BuildOptions:
    """max_seq_len None takes what the models' positions allow, at most 4096. prompt_chunk: tokens a prefill pass.

    min_overlap: the part of the target's tokens that a draft of another tokenizer must have. compiling: for the engines that run
    plans. tensorrt_version: the one on the device, by default that of this host.
    """

    max_seq_len: int | None = None
    max_draft_tokens: int = 4
    prompt_chunk: int = 64
    min_overlap: float = 0.5
    precision: Precision = "fp32"
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
        if self.precision not in PRECISIONS:
            raise ParameterError(f"--precision is {self.precision}; it must be one of {', '.join(PRECISIONS)}")
        if not self.engines:
            raise ParameterError("no --engine is given; name at least one")
        for option, *_ in self.compiling.arguments:
            if not set(LIBRARIES) & set(self.engines):
                raise ParameterError(f"{option} is for engines that run plans; add --engine {' or --engine '.join(LIBRARIES)}")
        if self.tensorrt_version is not None:
            parse_version(self.tensorrt_version)
            if "tensorrt" not in self.engines:
                raise ParameterError("--tensorrt-version is for --engine tensorrt; add it, or leave the version away")


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
    targets = choose_targets(options.engines, options.precision, options.compiling, version, str(output))

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
        specs = {role: export_model(model, role, contract, workplace, cache, timed, targets.dialects) for role, model in models.items()}
        text = _write_text(models["target"], workplace)
        vocabulary = _write_maps(translation, specs, options.min_overlap, workplace) if translation else None
        with timed.stage("prove", len(specs) * len(specs["target"].graphs)) as step:
            proofs = prove(workplace, specs, contract, options.engines, step)
        with timed.stage("rules", number_of_rules(contract)) as step:
            rules = write_rules(workplace, contract, specs["target"].vocab_size, step)
        with timed.stage("write", 1):
            manifest = _manifest(contract, specs, vocabulary, text, options.engines, rules, proofs, workplace, command)
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
        return Contract(capacity, options.max_draft_tokens, min(options.prompt_chunk, capacity), options.precision)
    except ValueError as error:
        raise ParameterError(f"--max-seq-len {capacity} and --max-draft-tokens {options.max_draft_tokens}: {error}") from None


def _write_text(target: Checkpoint, workplace: Path) -> TextSpec:
    """The tokenizer as the runtime reads it: `tokenizer.json`, and the chat template where there is one."""
    folder = workplace / "tokenizer"
    folder.mkdir()
    tokenizer = target.tokenizer
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    # Left over from training in some checkpoints; transformers resets both on every call.
    plain.no_truncation()
    plain.no_padding()
    # Not by its own save, which raises bare Exceptions when the disk is full.
    (folder / "tokenizer.json").write_text(plain.to_str(pretty=True), encoding="utf-8")
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several by name, as transformers keeps them
        template = template.get("default")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return TextSpec(
        tokenizer="tokenizer/tokenizer.json",
        chat_template="tokenizer/chat_template.jinja" if template is not None else None,
        special_tokens=special,
        stop_token_ids=target.stop_token_ids,
    )


def _write_maps(translation: Translation, specs: dict[Role, ModelSpec], min_overlap: float, workplace: Path) -> SharedVocabulary:
    """The draft's translation, as wide as the logits turned out to be."""
    target_size, draft_size = specs["target"].vocab_size, specs["draft"].vocab_size
    to_draft, shared = translation.maps(target_size, draft_size)
    overlap = shared.shape[1] / translation.target.count(target_size)
    if not shared.size or overlap < min_overlap:  # ids beyond the logits cannot be proposed
        raise PairError(
            f"the models can give {overlap:.1%} of the target's tokens, fewer than their tokenizers have; "
            f"--min-overlap asks for {min_overlap:.1%}; choose a draft of the target's family, "
            "or leave --draft away for drafts looked up in the text"
        )
    np.savez(workplace / MAPS, allow_pickle=False, to_draft=to_draft, shared=shared)
    return SharedVocabulary(MAPS, shared.shape[1], translation.target.count(target_size), translation.draft.count(draft_size))


def _manifest(
    contract: Contract,
    specs: dict[Role, ModelSpec],
    vocabulary: SharedVocabulary | None,
    text: TextSpec,
    engines: tuple[str, ...],
    rules: tuple[RuleSpec, ...],
    proofs: tuple[Proof, ...],
    workplace: Path,
    command: str,
) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        packages=package_versions(),
        contract=contract,
        target=specs["target"],
        draft=specs.get("draft"),
        vocabulary=vocabulary,
        text=text,
        engines=engines,
        rules=rules,
        plans=(),
        references={role: reference_path(role) for role in specs},
        proofs=proofs,
        files=list_files(workplace),
    )
