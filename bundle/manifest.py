"""The manifest of a bundle: models, plans, proofs and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..strict import OPTIONAL, without_defaults
from .contract import Contract
from .drafts import NO_DRAFT, DraftSpec
from .models import ModelSpec, Role

SCHEMA_VERSION = 13
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Defaults:
    """Of `generation_config.json`: settings by the names of sampling parameters, each at first as it is without one.

    sampling: what it recommends to requests that sample, as `top_p 0.9`; requests have to say it. left_out: settings
    that nothing applies.
    """

    repetition_penalty: float = 1.0
    banned_tokens: tuple[int, ...] = ()
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def within(self, vocab_size: int) -> Defaults:
        """Without tokens that the vocabulary lacks: banning them has no effect."""
        return replace(self, banned_tokens=tuple(token for token in self.banned_tokens if 0 <= token < vocab_size))

    @property
    def lines(self) -> Iterator[str]:
        """What it says and what becomes of it, for people."""
        applied = [f"repetition_penalty {self.repetition_penalty:g}"] if self.repetition_penalty != 1.0 else []
        applied += [f"banned_tokens {' '.join(map(str, self.banned_tokens))}"] if self.banned_tokens else []
        applied += [f"min_new_tokens {self.min_new_tokens}"] if self.min_new_tokens else []
        applied += [f"stop {' '.join(map(repr, self.stop))}"] if self.stop else []
        if applied:
            yield f"{', '.join(applied)}: for requests that do not say otherwise"
        if self.sampling:
            yield f"{', '.join(self.sampling)}: recommended for sampling; requests have to say it"
        if self.left_out:
            yield f"{', '.join(self.left_out)}: left out, nothing applies it"


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


@dataclass(frozen=True)
class Plan:
    """A graph compiled for an engine; see `specexport compile`.

    graph: the ONNX file that it was compiled from. version: that of the library that compiled it.
    compute_capabilities: those of the GPUs that can run it, e.g. `8.9`; empty if the library decides.
    version_compatible: whether the lean runtime of the same version can load it.
    """

    engine: str
    graph: str
    file: str
    version: str
    compute_capabilities: tuple[str, ...]
    version_compatible: bool


@dataclass(frozen=True)
class FileEntry:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json. Raises `ValueError` if its parts do not fit together.

    drafts: the first one drafts for requests that name no other; without any, drafts are looked up in the text.
    defaults: of requests.
    """

    schema_version: int
    created: str
    command: str
    packages: dict[str, str]
    contract: Contract
    target: ModelSpec
    drafts: tuple[DraftSpec, ...]
    text: TextSpec
    engines: tuple[str, ...]
    plans: tuple[Plan, ...]
    files: dict[str, FileEntry]
    defaults: Defaults = field(default_factory=Defaults, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if not self.engines:
            raise ValueError("it names no engine; a bundle is built for one at least")
        if len(set(self.draft_names)) < len(self.drafts):
            raise ValueError(f"the drafts are called {', '.join(self.draft_names)}; each needs a name of its own")
        for label, model in self.models.items():
            role = "target" if model is self.target else "draft"
            if not model.proofs or any(proof.role != role for proof in model.proofs):
                raise ValueError(f"the {label} has no proof, or one of another role")
            if (reads := model.reads) is not None and (
                not {*reads.taps} <= {*self.target.taps}
                or (not reads.fuse and reads.width != len(reads.taps) * self.target.tap_width)
                or (reads.fuse and reads.fuse.keys() != model.graphs.keys())
                or (reads.caches and model.layers != self.target.layers_at(reads.caches))
            ):
                raise ValueError(f"the {label} reads other hidden states, or other caches, than the target gives")

    @property
    def draft_names(self) -> tuple[str, ...]:
        return tuple(draft.name for draft in self.drafts)

    @property
    def first_draft(self) -> str:
        """The name of the draft that is used by default, `NO_DRAFT` where there is none."""
        return self.drafts[0].name if self.drafts else NO_DRAFT

    def draft_called(self, name: str) -> DraftSpec:
        return {draft.name: draft for draft in self.drafts}[name]

    @property
    def models(self) -> dict[str, ModelSpec]:
        """All models, as messages call them."""
        return {"target": self.target, **{draft.label: draft.model for draft in self.drafts}}

    @property
    def pair(self) -> dict[Role, ModelSpec]:
        """The target and the first draft, where there is one: what every engine runs."""
        return self.pair_with(self.first_draft)

    def pair_with(self, draft: str) -> dict[Role, ModelSpec]:
        """The target and the draft of that name, one of `draft_names` or `NO_DRAFT`."""
        pair: dict[Role, ModelSpec] = {"target": self.target}
        return pair if draft == NO_DRAFT else {**pair, "draft": self.draft_called(draft).model}

    @property
    def has_states(self) -> bool:
        return any(model.has_states for model in self.models.values())

    @property
    def longest(self) -> int:
        """The most tokens of a sequence: the capacity, minus the row that a quantized pass writes after its own on a
        CPU.
        """
        # exporter/quantize/batch_invariant.py
        spare = self.target.format != "float" and "ort" in self.target.graphs and self.contract.precision == "fp32"
        return self.contract.capacity - spare

    def referenced_files(self) -> Iterator[str]:
        """Paths of all files that the manifest refers to, relative to the bundle."""
        yield from (self.text.tokenizer, *(plan.file for plan in self.plans))
        yield from (path for path in (self.text.chat_template, self.text.tools_template) if path is not None)
        yield from self.target.files()
        for draft in self.drafts:
            yield from draft.files()


def write_manifest(root: Path, manifest: Manifest) -> None:
    (root / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")


def manifest_text(manifest: Manifest) -> str:
    return json.dumps(without_defaults(manifest), indent=1, ensure_ascii=False) + "\n"
