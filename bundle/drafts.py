"""The drafts of a bundle: their names, their models and their vocabularies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .models import ModelSpec

# Valid names of drafts: they are part of a drafter's name, and of a path in the bundle.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
# The drafter that looks tokens up in the text.
LOOKUP = "ngram"
# For help texts.
DRAFTER_DEFAULT = (
    "[default: the policy's, else ngram+model (model where a GPU runs whole rounds), or ngram without a draft]"
)
DRAFTERS_HELP = (
    "model, ngram or ngram+model. model is the bundle's first draft; the NAME of another (--draft NAME=MODEL) can take "
    "its place."
)
# Another name of the first draft, in requests and options.
ALIAS = "model"
# Stands for the draft of a bundle without one, in whatever is kept by draft.
NO_DRAFT = "none"
# Words that drafters' names contain already, or that have another meaning in options.
RESERVED = frozenset((LOOKUP, ALIAS, "lookup", "target", "all", NO_DRAFT))


def check_name(name: str) -> str:
    """Return `name`. Raises `ValueError` if it is not a valid name of a draft."""
    if not NAME.fullmatch(name):
        raise ValueError(f"the draft name {name!r} is invalid; use 1 to 32 letters, digits, dots, - and _")
    if name in RESERVED:
        raise ValueError(f"the draft name {name!r} is reserved; choose another one")
    return name


@dataclass(frozen=True)
class SharedVocabulary:
    """How a draft's ids are mapped to the target's: one with another tokenizer (token-level intersection, arXiv
    2502.05202), or one that reads the target's hidden states and proposes fewer tokens.

    maps: path of an npz with `to_draft [target vocab] int64`, the draft's id (or the nearest it has) for every id of
    the target, and `shared [2, n] int64`, the pairs (target id, draft id) of the tokens that both have.
    shared_tokens: n. target_tokens, draft_tokens: how many tokens each tokenizer has.
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
        """The share of the target's tokens that the draft can propose, 0 to 1."""
        return self.shared_tokens / self.target_tokens


@dataclass(frozen=True)
class DraftSpec:
    """A draft: the name that requests choose it by, its model, and a map where its tokenizer is not the target's."""

    name: str
    model: ModelSpec
    shared_vocabulary: SharedVocabulary | None = None

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def label(self) -> str:
        return "draft" if self.name == "draft" else f"draft {self.name}"

    def files(self) -> Iterator[str]:
        yield from self.model.files()
        if self.shared_vocabulary is not None:
            yield self.shared_vocabulary.maps

    def inside(self, folder: str) -> DraftSpec:
        """A copy whose paths are all in `folder` of the bundle."""
        maps = self.shared_vocabulary
        maps = maps and replace(maps, maps=f"{folder}/{maps.maps}")
        return replace(self, model=self.model.inside(folder), shared_vocabulary=maps)
