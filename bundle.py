"""The bundle: a folder with graphs, tokenizer and a manifest that says what each graph takes and gives.

    manifest.json   graphs/   graphs/rules/   engines/<engine>/   reference/   tokenizer/

The manifest lists every file with its size and SHA-256. It is written last, into a temporary sibling folder
that is then renamed, so a bundle either is whole or is not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from .errors import BundleError
from .strict import parse, read_json

SCHEMA_VERSION = 5
MANIFEST = "manifest.json"

Role = Literal["target", "draft"]
ROLES: tuple[Role, ...] = ("target", "draft")
Precision = Literal["fp32", "fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
# How the matrices of a model are stored; `float`: in the precision of the contract.
Format = Literal["float", "int8", "int4", "fp8"]
FORMATS: tuple[Format, ...] = ("float", "int8", "int4", "fp8")
# The engines that quantized graphs are made for: each family rounds in its own way.
Family = Literal["onnxruntime", "tensorrt"]

# The shortest part of the cache that attention looks at, where it costs by how much it looks at.
SHORTEST_SPAN = 512


@dataclass(frozen=True)
class Contract:
    """What every model graph of the bundle keeps.

    inputs   `tokens [1, T] int64`, `position [1] int64`, `past.{i}.key/value [1, num_kv_heads, capacity, head_dim]` in
             `precision`; in the dialects `onnx` and `rows` also `columns [C] int64`, 0 to C - 1: the cache rows looked at
    outputs  `logits [1, R, vocab] fp32` with R = T for T <= widest_step and R = 1 (the last row) beyond it,
             `present.{i}.key/value`, bound to the same memory as `past`; in the dialect `rows` instead
             `new.{i}.key/value [1, num_kv_heads, T, head_dim]`, which the caller places at `position`

    A draft's graph in the dialect `ort` may have a confidence head (`ModelSpec.features` = F > 0, arXiv 2607.05147).
    Then it also takes the weights `head [F + 1] fp32`, the bias last, and gives, for the rows of the logits, what the
    head reads and its logit:
    `features [1, R, F] fp32` and `confidence [1, R] fp32` = features . head[:F] + head[F].

    capacity: rows of the cache, the longest sequence. max_draft_tokens: the largest k. prompt_chunk: widest pass.
    """

    capacity: int
    max_draft_tokens: int
    prompt_chunk: int
    precision: Precision

    def __post_init__(self) -> None:
        if self.max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}; it must be at least 1")
        smallest = max(16, 4 * self.widest_step)  # what the proof's schedule walks through
        if self.capacity < smallest:
            raise ValueError(
                f"a capacity of {self.capacity} is too small; {self.max_draft_tokens} draft tokens need {smallest} or more"
            )
        if self.prompt_chunk < 1:
            raise ValueError(f"prompt_chunk is {self.prompt_chunk}; it must be at least 1")

    @property
    def widest_step(self) -> int:
        """Most tokens a pass gives logits for: k + 1, and 2 for the first draft step."""
        return max(2, self.max_draft_tokens + 1)

    @property
    def rows_name(self) -> str:
        """Name of the logits' row dimension: the graph's own word on how wide a step it gives all logits for."""
        return f"at_most_{self.widest_step}_rows"

    @property
    def widths(self) -> tuple[int, ...]:
        """Token widths T that are bound at load; a prompt's last chunk may have any width below prompt_chunk."""
        return (*range(1, self.widest_step + 1), *([self.prompt_chunk] if self.prompt_chunk > self.widest_step else []))

    @property
    def spans(self) -> tuple[int, ...]:
        """The ladder of C, how much of the cache a pass looks at: 512, 1024, ... and the capacity."""
        steps = []
        span = SHORTEST_SPAN
        while span < self.capacity:
            steps.append(span)
            span *= 2
        return (*steps, self.capacity)

    def span(self, end: int) -> int:
        """The least of `spans` that holds rows 0 to `end` - 1."""
        return next(span for span in self.spans if span >= end)


@dataclass(frozen=True)
class CacheLayer:
    """Shape of one layer's key and value cache, `[1, num_kv_heads, capacity, head_dim]` each."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Fidelity:
    """What quantizing did to a model, on `tokens` tokens of text that it was not calibrated on: the user's own, or the shipped.

    perplexity: of the next tokens of that text; exact_perplexity: the same before. divergence: mean KL of its
    distributions from the model's before, in nats. agreement: the part of the tokens behind which the likeliest token
    is the same, 0 to 1.
    """

    tokens: int
    own_texts: bool
    perplexity: float
    exact_perplexity: float
    divergence: float
    agreement: float

    @property
    def loss(self) -> float:
        """By how much the perplexity rose: 0.01 for one percent."""
        return self.perplexity / self.exact_perplexity - 1

    @property
    def measured_on(self) -> str:
        return f"{self.tokens} held-out tokens of {'the calibration prompts given' if self.own_texts else 'the shipped texts'}"


@dataclass(frozen=True)
class ModelSpec:
    """One model: where it came from and the sizes its graphs have.

    features: F, how many numbers a row the confidence head of its `ort` graph reads: the width of what the output
    embedding reads and that of the input embedding. 0 where the graph has no head.
    format: how its matrices are stored, but for those in `notes`: what was kept in a higher format, and why; also what
    rounds by static scales.
    fidelity: None where nothing is quantized.
    """

    source: str
    architecture: str
    checkpoint_sha256: str
    num_parameters: int
    vocab_size: int
    layers: tuple[CacheLayer, ...]
    graphs: dict[str, str]  # dialect -> path
    weights: str
    features: int
    format: Format
    notes: tuple[str, ...]
    fidelity: Fidelity | None

    def __post_init__(self) -> None:
        if self.features < 0:
            raise ValueError(f"features is {self.features}; it must be 0, for no confidence head, or more")

    def cache_names(self, side: Literal["past", "present", "new"]) -> Iterator[tuple[str, CacheLayer]]:
        for index, layer in enumerate(self.layers):
            for half in ("key", "value"):
                yield f"{side}.{index}.{half}", layer

    def cache_bytes(self, contract: Contract) -> int:
        rows = 2 * ELEMENT_BYTES[contract.precision] * contract.capacity
        return sum(rows * layer.num_kv_heads * layer.head_dim for layer in self.layers)


@dataclass(frozen=True)
class TextSpec:
    """What turns text into tokens and back; stop_token_ids end a generation."""

    tokenizer: str
    chat_template: str | None
    special_tokens: dict[str, str]  # bos_token, eos_token, ... for the chat template
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class SharedVocabulary:
    """How a draft of another tokenizer speaks the target's ids (token-level intersection, arXiv 2502.05202).

    maps: an npz of `to_draft [target vocab] int64`, the draft's id (or the nearest it has) for every id of the target,
    and `shared [2, n] int64`, the pairs (target id, draft id) of the tokens that both have. shared_tokens: n; the other
    two: how many tokens each tokenizer has.
    """

    maps: str
    shared_tokens: int
    target_tokens: int
    draft_tokens: int

    def __post_init__(self) -> None:
        if not 0 < self.shared_tokens <= min(self.target_tokens, self.draft_tokens):
            raise ValueError(
                f"{self.shared_tokens} tokens cannot be shared by {self.target_tokens} and {self.draft_tokens}"
            )

    @property
    def overlap(self) -> float:
        """The part of the target's tokens that the draft can propose."""
        return self.shared_tokens / self.target_tokens


RuleName = Literal["select", "select_greedy", "accept_greedy", "accept_token", "accept_block", "adjust"]


@dataclass(frozen=True)
class RuleSpec:
    """A graph of `exporter/rules/graphs.py`: what a round does between the models, for `num_draft_tokens` (k) and the target's vocabulary.

    rows: of the logits that it takes: k + 1 behind the target, 1 behind the draft (k is then what was drafted before).
    """

    rule: RuleName
    num_draft_tokens: int
    rows: int
    graph: str

    def __post_init__(self) -> None:
        if self.num_draft_tokens < 0 or self.rows not in (1, self.num_draft_tokens + 1):
            raise ValueError(f"{self.rows} rows do not fit {self.num_draft_tokens} draft tokens")


@dataclass(frozen=True)
class Plan:
    """A graph compiled for an engine; see `specexport compile`.

    graph: the ONNX file it was made from. version: of the library that made it. compute_capabilities: of the GPUs that
    can run it, `8.9` and so on, empty where the library decides. version_compatible: the lean runtime of the same
    version can load it. hardware_compatible: every GPU from compute capability 8.0 on can run it.
    """

    engine: str
    graph: str
    file: str
    version: str
    compute_capabilities: tuple[str, ...]
    version_compatible: bool
    hardware_compatible: bool


@dataclass(frozen=True)
class Proof:
    """Largest difference of a compiled graph from the Hugging Face model, in standard deviations of its logits.

    rows: logit rows compared. length: the longest sequence they end.
    """

    engine: str
    dialect: str
    role: str
    rows: int
    length: int
    max_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.max_error <= self.tolerance  # False for NaN


@dataclass(frozen=True)
class FileEntry:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    schema_version: int
    created: str
    command: str
    packages: dict[str, str]
    contract: Contract
    target: ModelSpec
    draft: ModelSpec | None  # without one, drafts are looked up in the text
    vocabulary: SharedVocabulary | None  # where the draft has another tokenizer
    text: TextSpec
    engines: tuple[str, ...]
    rules: tuple[RuleSpec, ...]
    plans: tuple[Plan, ...]
    references: dict[str, str]  # role -> the Hugging Face model's logits for the proof
    proofs: tuple[Proof, ...]
    files: dict[str, FileEntry]

    def __post_init__(self) -> None:
        for name, roles in (("references", set(self.references)), ("proofs", {proof.role for proof in self.proofs})):
            if roles != set(self.roles):
                raise ValueError(
                    f"{name} are of {', '.join(sorted(roles)) or 'no model'}, expected {' and '.join(self.roles)}"
                )
        if self.vocabulary is not None and self.draft is None:
            raise ValueError("there is a shared vocabulary, but no draft")

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES if self.draft is not None else ("target",)

    @property
    def longest(self) -> int:
        """Most tokens of a sequence: the capacity, but for the row behind a pass that `exporter/quantize/batch_invariant.py` writes."""
        spare = self.target.format != "float" and "ort" in self.target.graphs
        return self.contract.capacity - spare

    @property
    def models(self) -> dict[Role, ModelSpec]:
        return {"target": self.target} if self.draft is None else {"target": self.target, "draft": self.draft}

    def referenced_files(self) -> Iterator[str]:
        yield from (self.text.tokenizer, *self.references.values(), *(rule.graph for rule in self.rules))
        yield from (plan.file for plan in self.plans)
        if self.text.chat_template is not None:
            yield self.text.chat_template
        if self.vocabulary is not None:
            yield self.vocabulary.maps
        for model in self.models.values():
            yield from (*model.graphs.values(), model.weights)


@dataclass(frozen=True)
class Bundle:
    root: Path
    manifest: Manifest

    @classmethod
    def open(cls, root: str | Path, check_digests: bool = True, without_plans: str | None = None) -> Bundle:
        """Read and check a bundle: schema, paths, every file's size and (unless told otherwise) SHA-256.

        without_plans: an engine whose plans are not looked at, since they are to be made again.
        Raises `BundleError` naming the file and what is wrong with it.
        """
        root = Path(root)
        if not root.is_dir():
            made = (
                "a bundle is a folder"
                if root.exists()
                else f"make it with: specexport build --target ... --draft ... -o {root}"
            )
            raise BundleError(f"{root} {'is a file' if root.exists() else 'does not exist'}; {made}")
        raw = read_json(root / MANIFEST)
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version != SCHEMA_VERSION:
            command = raw.get("command")
            told = f", which was made with: {command}" if isinstance(command, str) and command.isprintable() else ""
            remedy = f"{'update specexport or ' * (version > SCHEMA_VERSION)}build the bundle again{told}"
            raise BundleError(
                f"{root / MANIFEST} has schema version {version}, this specexport reads {SCHEMA_VERSION}; {remedy}"
            )
        bundle = cls(root, parse(Manifest, raw, MANIFEST))
        bundle._check_files(check_digests, f"engines/{without_plans}/")
        return bundle

    def path(self, name: str) -> Path:
        return self.root / name

    def _check_files(self, check_digests: bool, ignored: str) -> None:
        files = self.manifest.files
        for name in self.manifest.referenced_files():
            if name not in files:
                raise BundleError(
                    f"{MANIFEST} refers to {name!r}, which its list of files lacks; build the bundle again"
                )
        wanted = {name: entry for name, entry in files.items() if not name.startswith(ignored)}
        for name, entry in wanted.items():
            path = _file(self.root, name, self._remedy(name))
            if path.stat().st_size != entry.bytes:
                raise BundleError(
                    f"{path} has {path.stat().st_size} bytes, the manifest says {entry.bytes}; {self._remedy(name)}"
                )
        if check_digests:
            with ThreadPoolExecutor() as pool:
                digests = pool.map(lambda name: sha256(self.root / name), wanted)
            for name, digest in zip(wanted, digests, strict=True):
                if digest != wanted[name].sha256:
                    raise BundleError(
                        f"{self.root / name} was changed after the build (SHA-256 differs); {self._remedy(name)}"
                    )

    def _remedy(self, name: str) -> str:
        engine = next((plan.engine for plan in self.manifest.plans if plan.file == name), None)
        return (
            "build the bundle again"
            if engine is None
            else f"make it again with: specexport compile {self.root} --engine {engine}"
        )


def _file(root: Path, name: str, remedy: str) -> Path:
    """The path of `name`, a file that must be there and lie in the bundle, links followed."""
    pure, path = PurePosixPath(name), root / name
    plain = name.isprintable() and not pure.is_absolute() and ".." not in pure.parts and "\\" not in name
    try:
        inside = plain and path.resolve().is_relative_to(root.resolve())
        found = inside and path.is_file()
    except (OSError, RuntimeError):  # a name too long, a link to itself
        inside = found = False
    if not inside:
        raise BundleError(f"{MANIFEST} names {name!r}, which lies outside of the bundle; do not use this bundle")
    if not found:
        raise BundleError(f"{path} is missing; {remedy}")
    return path


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_files(root: Path) -> dict[str, FileEntry]:
    """Every file below `root` but the manifest, with size and digest."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(root).as_posix(): FileEntry(path.stat().st_size, sha256(path)) for path in found}


def write_manifest(root: Path, manifest: Manifest) -> None:
    (root / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
