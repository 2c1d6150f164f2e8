"""The manifest of a bundle: models, rules, plans, proofs and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..strict import OPTIONAL
from .contract import Contract
from .defaults import Defaults
from .drafts import DraftSpec, DraftVocabulary, SharedVocabulary, check_name
from .models import ROLES, ModelSpec, Role
from .proofs import Proof

SCHEMA_VERSION = 9
# The oldest that can be read: all fields that it lacks have defaults.
OLDEST_SCHEMA = 7
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TextSpec:
    """Tokenizer and chat templates, as paths in the bundle. stop_token_ids: the tokens that end a generation.

    tools_template: the chat template for messages with tools, where the model has another one for them.
    """

    tokenizer: str
    chat_template: str | None
    special_tokens: dict[str, str]  # bos_token, eos_token, ... for the chat template
    stop_token_ids: tuple[int, ...]
    tools_template: str | None = field(default=None, metadata=OPTIONAL)


RuleName = Literal["select", "select_greedy", "accept_greedy", "accept_token", "accept_block"]


@dataclass(frozen=True)
class RuleSpec:
    """A graph of a verification rule (`exporter/rules/graphs.py`): a round's steps between the models' passes.

    num_draft_tokens: k. rows: how many rows of logits it takes, k + 1 of the target or 1 of the draft; in the latter
    case k is the number of tokens drafted before.
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

    graph: the ONNX file that it was compiled from. version: that of the library that compiled it.
    compute_capabilities: those of the GPUs that can run it, e.g. `8.9`; empty if the library decides.
    version_compatible: whether the lean runtime of the same version can load it. hardware_compatible: whether every
    GPU of compute capability 8.0 or higher can run it.
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
    """The content of manifest.json. Raises `ValueError` if its parts do not fit together.

    draft: the first draft, which requests use unless they name another. draft_name: its name. more_drafts: the others,
    by name. defaults: of requests.
    """

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
    draft_name: str = field(default="draft", metadata=OPTIONAL)
    more_drafts: dict[str, DraftSpec] = field(default_factory=dict, metadata=OPTIONAL)
    defaults: Defaults = field(default_factory=Defaults, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        for called in (self.draft_name, *self.more_drafts):
            check_name(called)
        if self.more_drafts and (self.draft is None or self.draft_name in self.more_drafts):
            raise ValueError("there are additional drafts, but no first one, or one with the first one's name")
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
    def draft_names(self) -> tuple[str, ...]:
        """Names of all drafts, the first draft's first."""
        return (self.draft_name, *self.more_drafts) if self.draft is not None else ()

    def with_draft(self, name: str) -> Manifest:
        """The manifest as if the draft `name`, one of `draft_names`, were the only one."""
        alone = replace(self, more_drafts={})
        return alone if name == self.draft_name else alone.with_first(name, self.more_drafts[name])

    def with_first(self, name: str, draft: DraftSpec) -> Manifest:
        """The manifest with `draft` as its first draft, in place of the one that it may have."""
        return replace(
            self,
            draft=draft.model,
            vocabulary=draft.vocabulary,
            draft_vocabulary=None,
            references=self.references | {"draft": draft.reference},
            proofs=(*(proof for proof in self.proofs if proof.role != "draft"), *draft.proofs),
            draft_name=name,
        )

    @property
    def has_states(self) -> bool:
        """Whether a model keeps recurrent or convolution states in addition to keys and values."""
        return any(model.has_states for model in (*self.models.values(), *(d.model for d in self.more_drafts.values())))

    @property
    def longest(self) -> int:
        """The most tokens of a sequence: the capacity, minus the row that a quantized pass writes after its own."""
        # exporter/quantize/batch_invariant.py
        spare = self.target.format != "float" and "ort" in self.target.graphs
        return self.contract.capacity - spare

    @property
    def models(self) -> dict[Role, ModelSpec]:
        return {"target": self.target} if self.draft is None else {"target": self.target, "draft": self.draft}

    def referenced_files(self) -> Iterator[str]:
        """Paths of all files that the manifest refers to, relative to the bundle."""
        yield from (self.text.tokenizer, *self.references.values(), *(rule.graph for rule in self.rules))
        yield from (plan.file for plan in self.plans)
        yield from (path for path in (self.text.chat_template, self.text.tools_template) if path is not None)
        if self.vocabulary is not None:
            yield self.vocabulary.maps
        for model in self.models.values():
            yield from (*model.graphs.values(), model.weights)
        for draft in self.more_drafts.values():
            yield from draft.files()


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write manifest.json into `root`, in the current schema even if it was read in an older one."""
    (root / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")


def manifest_text(manifest: Manifest) -> str:
    row = asdict(manifest) | {"schema_version": SCHEMA_VERSION}
    return json.dumps(row, indent=1, ensure_ascii=False) + "\n"
