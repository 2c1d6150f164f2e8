"""What the manifest says of drafts: their vocabularies, and the drafts beside the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .models import ModelSpec
from .proofs import Proof

# What drafts may be called: a word of a drafter's name, and of a path in the bundle.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
# Drafters that look tokens up in the text; `runtime/drafting/drafters.py` has one class for each.
LOOKUPS = ("ngram", "suffix")
_WITH_MODEL = [f"{lookup}+model" for lookup in LOOKUPS]
# All drafters of a bundle with one draft, for help texts.
LISTED = f"{', '.join(('model', *LOOKUPS, *_WITH_MODEL[:-1]))} or {_WITH_MODEL[-1]}"
# Words that drafters' names have of their own, or that options read in another way.
RESERVED = frozenset((*LOOKUPS, "model", "lookup", "target", "all", "none"))


def check_name(name: str) -> str:
    """Raises `ValueError` for what no draft may be called."""
    if not NAME.fullmatch(name):
        raise ValueError(f"the draft name {name!r} is invalid; use 1 to 32 letters, digits, dots, - and _")
    if name in RESERVED:
        raise ValueError(f"the draft name {name!r} is reserved; choose another one")
    return name


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


@dataclass(frozen=True)
class DraftSpec:
    """A draft beside the bundle's first one, with all that the manifest says of the first in fields of its own.

    reference: the logits that its proofs are against. vocabulary, proofs: as of `Manifest`.
    """

    model: ModelSpec
    vocabulary: SharedVocabulary | None
    reference: str
    proofs: tuple[Proof, ...]

    def __post_init__(self) -> None:
        if not self.proofs or any(proof.role != "draft" for proof in self.proofs):
            raise ValueError("an additional draft has no proof, or one of another role")

    def files(self) -> Iterator[str]:
        yield from (*self.model.graphs.values(), self.model.weights, self.reference)
        if self.vocabulary is not None:
            yield self.vocabulary.maps

    def inside(self, folder: str) -> DraftSpec:
        """The same with all files in `folder` of the bundle."""
        graphs = {dialect: f"{folder}/{graph}" for dialect, graph in self.model.graphs.items()}
        model = replace(self.model, graphs=graphs, weights=f"{folder}/{self.model.weights}")
        maps = self.vocabulary and replace(self.vocabulary, maps=f"{folder}/{self.vocabulary.maps}")
        return replace(self, model=model, vocabulary=maps, reference=f"{folder}/{self.reference}")
