"""The tokens that two tokenizers share, of whatever families: those that stand for the same bytes.

What a token stands for is read from the decoder that its `tokenizer.json` declares (`runtime/text/token_bytes.py`).
Special tokens stand for no bytes: they are paired by content, and then by what they are for. The pairs serve
token-level intersection (Timor et al. 2025, arXiv 2502.05202, algorithm 4); `runtime/drafting/translate.py` decodes by
them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ...runtime.text.token_bytes import BYTE_FALLBACK, spelled, token_names

PURPOSES = ("eos_token", "bos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class Tokens:
    """One tokenizer's tokens by what they stand for.

    tokenizer: the content of a `tokenizer.json`. purpose_ids: ids of its special tokens, by `PURPOSES`.
    """

    tokenizer: Mapping[str, Any]
    purpose_ids: Mapping[str, int | None]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Tokens:
        ids = {purpose: getattr(tokenizer, f"{purpose}_id") for purpose in PURPOSES}
        return cls(json.loads(tokenizer.backend_tokenizer.to_str()), ids)

    @cached_property
    def _names(self) -> dict[int, str]:
        return token_names(self.tokenizer)

    @property
    def _added(self) -> Sequence[Mapping[str, Any]]:
        return self.tokenizer.get("added_tokens") or ()

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset((*self._names, *(entry["id"] for entry in self._added)))

    @cached_property
    def special(self) -> dict[int, str]:
        """Content by id, of special tokens and the one for what is unknown."""
        model, names = self.tokenizer["model"], self._names.items()
        unknown = {id_: name for id_, name in names if id_ == model.get("unk_id") or name == model.get("unk_token")}
        return unknown | {entry["id"]: entry["content"] for entry in self._added if entry["special"]}

    @cached_property
    def named(self) -> dict[str, int]:
        """Ids of special and added tokens by content; what was added and is not special (a run of spaces, say) is text
        too.
        """
        tokens = self.special | {entry["id"]: entry["content"] for entry in self._added}
        return {name: token for token, name in tokens.items()}

    @cached_property
    def purposes(self) -> dict[str, int]:
        """Which special token is the eos_token, ..."""
        return {purpose: token for purpose, token in self.purpose_ids.items() if token in self.special}

    @cached_property
    def text(self) -> dict[int, bytes]:
        """The bytes of every id that is text, in the order in which one is preferred among those of the same bytes:
        ordinary tokens before `<0x..>`.
        """
        written, names = spelled(self.tokenizer), self._names
        order = sorted(written, key=lambda token: (bool(BYTE_FALLBACK.fullmatch(names.get(token, ""))), token))
        return {token: written[token] for token in order if written[token] and token not in self.special}

    @cached_property
    def by_bytes(self) -> dict[bytes, list[int]]:
        ids: dict[bytes, list[int]] = {}
        for token, value in self.text.items():
            ids.setdefault(value, []).append(token)
        return ids

    def count(self, size: int) -> int:
        """How many tokens a model with `size` logits can give."""
        return sum(token < size for token in self.ids)

    def encode(self, text: str) -> list[int]:
        return list(self._encoder.encode(text, add_special_tokens=False).ids)

    def last_of(self, text: str) -> int | None:
        """The last id of the tokenizer's own encoding."""
        try:
            ids = self.encode(text)
        except Exception:  # a bare one, for characters in no token where there is no unknown token
            return None
        return ids[-1] if ids else None

    @cached_property
    def _encoder(self) -> Tokenizer:
        encoder = Tokenizer.from_str(json.dumps(self.tokenizer))
        encoder.no_truncation()
        encoder.no_padding()
        return encoder


@dataclass(frozen=True)
class Translation:
    """pairs: (target id, draft id) of the shared tokens; no id comes twice on either side.

    use: how often each of the target's ids comes in the texts that the overlap is counted on.
    """

    target: Tokens
    draft: Tokens
    pairs: tuple[tuple[int, int], ...]
    use: Counter[int]

    @classmethod
    def between(cls, target: Tokens, draft: Tokens, texts: Iterable[str] = ()) -> Translation:
        # By content, special or not: `<think>` is special in one family and merely added in the next.
        pairs = {token: draft.named[name] for name, token in target.named.items() if name in draft.named}
        taken = set(pairs.values())
        for value, ids in target.by_bytes.items():
            # In order, so that of several ids for the same bytes the first ones meet, and then `<0x0A>` meets `<0x0A>`.
            ours = (token for token in ids if token not in pairs)
            theirs = (token for token in draft.by_bytes.get(value, ()) if token not in taken)
            pairs.update(dict(zip(ours, theirs, strict=False)))
        taken = set(pairs.values())
        for purpose in PURPOSES:
            match target.purposes.get(purpose), draft.purposes.get(purpose):
                case int(token), int(other) if token not in pairs and other not in taken:
                    pairs[token] = other
                    taken.add(other)
        use = Counter(token for text in texts for token in target.encode(text))
        return cls(target, draft, tuple(sorted(pairs.items())), use)

    @property
    def overlap(self) -> float:
        """The part of the tokens in the texts that the draft can propose."""
        return self.overlap_of(ours for ours, _ in self.pairs)

    def overlap_of(self, tokens: Iterable[int]) -> float:
        """The same where only these of the target's tokens are shared."""
        return sum(self.use[token] for token in tokens) / max(self.use.total(), 1)

    @property
    def is_identity(self) -> bool:
        """Both have the same tokens under the same ids: nothing needs translating."""
        return all(ours == theirs for ours, theirs in self.pairs) and len(self.pairs) == len(self.target.ids) == len(
            self.draft.ids
        )

    def maps(self, target_size: int, draft_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`to_draft [target_size]`, `shared [2, n]` sorted by the target's id, as `TranslatedDecoder` takes them.

        The sizes are those of the logits: a vocabulary may be padded, or have tokens that the model lacks.
        """
        pairs = [(ours, theirs) for ours, theirs in self.pairs if ours < target_size and theirs < draft_size]
        shared = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        unknown = self.draft.purposes.get("unk_token", 0)
        to_draft = np.full(target_size, unknown if unknown < draft_size else 0, np.int64)
        to_draft[shared[0]] = shared[1]
        known = set(shared[0].tolist())
        for token in self.target.ids:
            if (
                token < target_size
                and token not in known
                and (nearest := self._nearest(token)) is not None
                and nearest < draft_size
            ):
                to_draft[token] = nearest
        return to_draft, shared

    def _nearest(self, token: int) -> int | None:
        """For a context token that is not shared: one that stands for the same, or the last of those that spell it."""
        value = self.target.text.get(token)
        if value is None:
            alike = (
                purpose
                for purpose, special in self.target.purposes.items()
                if special == token and purpose in self.draft.purposes
            )
            purpose = next(alike, None)
            return self.draft.purposes[purpose] if purpose else self.draft.last_of(self.target.special.get(token, ""))
        if same := self.draft.by_bytes.get(value):
            return same[0]
        try:
            return self.draft.last_of(value.decode())
        except UnicodeDecodeError:  # a part of a character, which no text spells
            endings = (self.draft.by_bytes.get(value[start:]) for start in range(1, len(value)))
            return next((ids[0] for ids in endings if ids), None)
