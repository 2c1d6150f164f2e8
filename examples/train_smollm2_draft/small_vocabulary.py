"""A tokenizer with few of the target's tokens, and the target's answers in its ids.

The target has 49 152 tokens, most of which it never uses when it writes about Python, and a table of all of them would
be most of a small draft. Bundles translate between the two vocabularies (`runtime/drafting/translate.py`): a token that
the draft lacks is read as the last of the tokens that spell it. So the draft is trained on the ids that it will read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from specexport.exporter.checkpoints.shared_vocabulary import PURPOSES, Tokens, Translation
from specexport.exporter.tuning.answers import Answer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

# How many of the most likely tokens are kept of each row of the target.
ROW = 32


def choose(answers: Sequence[Answer], tokenizer: dict[str, Any], size: int) -> list[int]:
    """The target's ids to keep, in rising order: special tokens and single bytes, then the most frequent tokens of
    answers, and if there is room, of prompts.
    """
    tokens = Tokens(tokenizer, {})
    required = {*tokens.special, *(token for token, value in tokens.text.items() if len(value) == 1)}
    counts = [Counter(token for one in answers for token in part(one)) for part in (_written, _read)]

    def rank(token: int) -> tuple[int, ...]:
        return (token not in required, *(-count[token] for count in counts), token)

    return sorted(sorted(range(len(tokens.ids)), key=rank)[:size])


def _written(answer: Answer) -> tuple[int, ...]:
    return answer.tokens


def _read(answer: Answer) -> tuple[int, ...]:
    return answer.prompt


def cut(tokenizer: PreTrainedTokenizerBase, kept: Sequence[int]) -> PreTrainedTokenizerFast:
    """The tokenizer with only these tokens, renumbered, and with the merges that they allow."""
    parsed = json.loads(tokenizer.backend_tokenizer.to_str())
    number = {token: place for place, token in enumerate(kept)}
    model = parsed["model"]
    vocabulary = {name: number[token] for name, token in model["vocab"].items() if token in number}
    merges = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= vocabulary.keys()]
    parsed["model"] = {**model, "vocab": vocabulary, "merges": merges}
    parsed["added_tokens"] = [
        {**entry, "id": number[entry["id"]]} for entry in parsed["added_tokens"] if entry["id"] in number
    ]
    backend = Tokenizer.from_str(json.dumps(parsed))
    special = {purpose: getattr(tokenizer, purpose) for purpose in PURPOSES}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@dataclass(frozen=True)
class Ids:
    """to_draft `[target size]`: the draft's id for each of the target's ids. exact `[target size]`: the draft's id of
    tokens that it has too, -1 for the others.
    """

    to_draft: NDArray[np.int64]
    exact: NDArray[np.int64]

    @classmethod
    def between(cls, target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> Ids:
        translation = Translation.between(Tokens.of(target), Tokens.of(draft))
        to_draft, shared = translation.maps(len(target), len(draft))
        exact = np.full(len(target), -1, np.int64)
        exact[shared[0]] = shared[1]
        return cls(to_draft, exact)

    def translate(self, answer: Answer) -> Answer:
        """The answer in the draft's ids, and for each row its most likely tokens that the draft has, renormalized.

        If the most likely token of a row is not among them, the first id is -1: no draft token is accepted there.
        """
        ids = self.exact[answer.ids]
        logprobs = np.where(ids >= 0, answer.logprobs.astype(np.float64), -np.inf)
        lost = np.log1p(-np.where(ids < 0, np.exp(answer.logprobs.astype(np.float64)), 0).sum(1).clip(0, 1 - 1e-3))
        order = np.argsort(ids < 0, axis=1, kind="stable")[:, :ROW]
        found, known = np.take_along_axis(ids, order, 1), np.take_along_axis(logprobs, order, 1) - lost[:, None]
        for row in np.flatnonzero((found < 0).any(1)):  # few: rows need ids, each once
            others = np.setdiff1d(np.arange(2 * ROW), found[row])
            empty = found[row] < 0
            found[row, empty], known[row, empty] = others[: empty.sum()], -30.0
        return Answer(
            answer.route,
            tuple(self.to_draft[list(answer.prompt)].tolist()),
            tuple(self.to_draft[list(answer.tokens)].tolist()),
            found.astype(np.int32),
            known.astype(np.float16),
        )

    def to_judge(self, answer: Answer) -> Answer:
        """The translated answer for judging greedy drafts."""
        found = self.translate(answer)
        found.ids[self.exact[answer.ids[:, 0]] < 0, 0] = -1
        return found
