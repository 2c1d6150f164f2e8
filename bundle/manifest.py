"""What the manifest says of a bundle: models, rules, plans, proofs and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Literal

from .contract import ELEMENT_BYTES, ROLES, CacheLayer, Contract, Role, State
from .proofs import LayerProof, Proof

SCHEMA_VERSION = 7
MANIFEST = "manifest.json"

# How the matrices of a model are stored; `float`: in the precision of the contract.
Format = Literal["float", "int8", "int4", "fp8"]
FORMATS: tuple[Format, ...] = ("float", "int8", "int4", "fp8")
# The engines that quantized graphs are made for: each family rounds in its own way.
Family = Literal["onnxruntime", "tensorrt"]


@dataclass(frozen=True)
class Fidelity:
    """What quantizing did to a model, on `tokens` tokens of text that it was not calibrated on.

    own_texts: the user's text, not the shipped one. perplexity: of the next tokens of that text; exact_perplexity: the
    same before. divergence: mean KL of its distributions from the model's before, in nats. agreement: the part of the
    tokens behind which the likeliest token is the same, 0 to 1.
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
        source = "the calibration prompts given" if self.own_texts else "the shipped texts"
        return f"{self.tokens} held-out tokens of {source}"


@dataclass(frozen=True)
class ModelSpec:
    """One model: where it came from and the sizes its graphs have.

    features: F, how many numbers a row the confidence head of its `ort` graph reads: the width of what the output
    embedding reads and that of the input embedding. 0 where the graph has no head.
    format: how its matrices are stored, but for those in `notes`: what was kept in a higher format, and why; also what
    rounds by static scales.
    fidelity: None where nothing is quantized.
    rounding: mean KL divergence in nats of the reference of the proof from the model before it was quantized; None
    where nothing is. layer_proofs: one a quantized graph.
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
    rounding: float | None = None
    layer_proofs: tuple[LayerProof, ...] = ()

    def __post_init__(self) -> None:
        if self.features < 0:
            raise ValueError(f"features is {self.features}; it must be 0, for no confidence head, or more")

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps more than keys and values: see `State`."""
        return any(layer.states for layer in self.layers)

    def cache_names(self, side: Literal["past", "present", "new"]) -> Iterator[tuple[str, CacheLayer]]:
        for index, layer in enumerate(self.layers):
            for half in ("key", "value") if layer.num_kv_heads else ():
                yield f"{side}.{index}.{half}", layer

    def state_names(self, side: Literal["past", "present"]) -> Iterator[tuple[str, State]]:
        for index, layer in enumerate(self.layers):
            for state in layer.states:
                yield f"{side}.{index}.{state.name}", state

    def row_bytes(self, contract: Contract) -> int:
        """Of one row of keys and values, all layers."""
        return 2 * ELEMENT_BYTES[contract.precision] * sum(x.num_kv_heads * x.head_dim for x in self.layers)

    def state_bytes(self, contract: Contract) -> int:
        return sum(
            prod(state.shape(contract)) * ELEMENT_BYTES[state.precision(contract)]
            for _, state in self.state_names("past")
        )

    def cache_bytes(self, contract: Contract) -> int:
        return contract.capacity * self.row_bytes(contract) + self.state_bytes(contract)


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


@dataclass(frozen=True)
class DraftVocabulary:
    """Which of the target's tokens a draft with a smaller output layer can propose, and what that costs.

    kept_tokens of all_tokens. Counted on counted_tokens of the target's own answers, judged on held_out_tokens of
    answers to other prompts. own_texts: the prompts are the user's. coverage: the part of those held-out tokens that
    is kept. agreement: where target and draft have the same likeliest token; acceptance: sum min(p, q) at temperature
    1; both a mean over the held-out tokens, with the kept ids and with all.
    """

    kept_tokens: int
    all_tokens: int
    counted_tokens: int
    held_out_tokens: int
    own_texts: bool
    coverage: float
    agreement: float
    whole_agreement: float
    acceptance: float
    whole_acceptance: float

    def __post_init__(self) -> None:
        if not 0 < self.kept_tokens < self.all_tokens:
            raise ValueError(f"{self.kept_tokens} kept tokens are not fewer than all {self.all_tokens}")

    @property
    def summary(self) -> str:
        source = "the calibration prompts given" if self.own_texts else "the shipped texts"
        return (
            f"{self.kept_tokens} of {self.all_tokens} tokens, {self.coverage:.1%} of {self.held_out_tokens} held-out "
            f"tokens of the target's answers to {source}; accepted when greedy {self.agreement:.1%} (all tokens: "
            f"{self.whole_agreement:.1%}), at temperature 1 {self.acceptance:.1%} ({self.whole_acceptance:.1%})"
        )


RuleName = Literal["select", "select_greedy", "accept_greedy", "accept_token", "accept_block", "adjust"]


@dataclass(frozen=True)
class RuleSpec:
    """A graph of `exporter/rules/graphs.py`: what a round does between the models, for the target's vocabulary.

    num_draft_tokens: k. rows: of the logits that it takes: k + 1 behind the target, 1 behind the draft (k is then what
    was drafted before).
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
    draft_vocabulary: DraftVocabulary | None  # where its output layer was cut down
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
        if self.draft_vocabulary is not None and self.draft is None:
            raise ValueError("there is a draft vocabulary, but no draft")

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES if self.draft is not None else ("target",)

    @property
    def longest(self) -> int:
        """Most tokens of a sequence: the capacity, less the row that a quantized pass writes behind its own."""
        # exporter/quantize/batch_invariant.py
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


def write_manifest(root: Path, manifest: Manifest) -> None:
    (root / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
