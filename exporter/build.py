"""`specexport build`: load pair -> check -> trace -> optimize -> prove -> write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tokenizers import Tokenizer

from ..bundle import (
    PRECISIONS,
    ROLES,
    SCHEMA_VERSION,
    Bundle,
    Contract,
    Manifest,
    ModelSpec,
    Precision,
    Proof,
    Role,
    TextSpec,
    list_files,
    write_manifest,
)
from ..engines import engine_module
from ..errors import EngineError, ParameterError
from .checkpoint import Checkpoint
from .model import export_model, reference_path
from .packages import package_versions
from .pair import check_capacity, check_pair
from .progress import Progress, Silent, StageTime, Timed
from .prove import prove
from .stages import default_cache, open_cache
from .workplace import new_folder, require_space


@dataclass(frozen=True)
class BuildOptions:
    """max_seq_len None takes what the models' positions allow, at most 4096. prompt_chunk: tokens a prefill pass."""

    max_seq_len: int | None = None
    max_draft_tokens: int = 4
    prompt_chunk: int = 64
    precision: Precision = "fp32"
    engines: tuple[str, ...] = ("onnxruntime",)
    force: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_tokens <= 32:
            raise ParameterError(f"--max-draft-tokens is {self.max_draft_tokens}; it must be from 1 to 32")
        if self.prompt_chunk < 1:
            raise ParameterError(f"--prompt-chunk is {self.prompt_chunk}; it must be at least 1")
        if self.precision not in PRECISIONS:
            raise ParameterError(f"--precision is {self.precision}; this version has {', '.join(PRECISIONS)}")


@dataclass(frozen=True)
class BuildReport:
    bundle: Bundle
    times: tuple[StageTime, ...]
    warnings: tuple[str, ...]


def build(
    target: str,
    draft: str,
    output: str | os.PathLike[str],
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    command: str = "specexport.exporter.build",
) -> BuildReport:
    """Compile `target` and `draft` (folders or hub ids) into a proven bundle at `output`.

    Raises `CheckpointError`, `PairError`, `OutputError`, `ProofError`; then nothing is left at `output`.
    """
    options = options or BuildOptions()
    timed = Timed(progress or Silent())
    cache = open_cache(options.cache or default_cache())
    for engine in options.engines:
        found = engine_module(engine).availability()
        if not found.usable:
            raise EngineError(f"engine {engine} cannot prove the graphs on this host: {found.detail}; {found.remedy}")

    with new_folder(Path(output), options.force) as workplace:
        with timed.stage("check the pair", 1):
            pair: dict[Role, Checkpoint] = {"target": Checkpoint.find(target), "draft": Checkpoint.find(draft)}
            warnings = check_pair(pair["target"], pair["draft"])
            contract = _contract(pair["target"], pair["draft"], options)
        for warning in warnings:
            timed.note(f"warning: {warning}")
        if cache.stat().st_dev != workplace.stat().st_dev:  # else finished stages are linked, not copied
            require_space(workplace, sum(checkpoint.fp32_bytes for checkpoint in pair.values()))
        specs = {role: export_model(pair[role], role, contract, workplace, cache, timed) for role in ROLES}
        text = _write_text(pair["target"], workplace)
        with timed.stage("prove", len(ROLES) * len(specs["target"].graphs)) as step:
            proofs = prove(workplace, specs, contract, step)
        with timed.stage("write", 1):
            manifest = _manifest(contract, specs, text, options.engines, proofs, workplace, command)
            write_manifest(workplace, manifest)
            Bundle.open(workplace, check_digests=False)  # what was written must be readable
    return BuildReport(Bundle(Path(output), manifest), tuple(timed.times), tuple(warnings))


def _contract(target: Checkpoint, draft: Checkpoint, options: BuildOptions) -> Contract:
    capacity = check_capacity(target, draft, options.max_seq_len)
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


def _manifest(
    contract: Contract,
    specs: dict[Role, ModelSpec],
    text: TextSpec,
    engines: tuple[str, ...],
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
        draft=specs["draft"],
        text=text,
        engines=engines,
        references={role: reference_path(role) for role in ROLES},
        proofs=proofs,
        files=list_files(workplace),
    )
