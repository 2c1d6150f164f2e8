"""Sessions whose model writes what a test tells it, byte by byte, unless a grammar forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from specexport.bundle import Contract
from specexport.engines.base import Engine, Logits, OpenedDraft
from specexport.runtime.session import Session
from tokenizers import AddedToken

from support.doubles import EOS, VOCAB, FakeDecoder, byte_tokenizer, write_bundle

CONTRACT = Contract(capacity=2048, max_draft_tokens=4, prompt_chunk=64, precision="fp32")


class Scripted(FakeDecoder):
    """Behind `marker`, the last one in the text, it writes `script` and then the stop token; where the text has gone
    another way, whatever comes to it. wrong: every so many tokens it is mistaken.
    """

    script: Sequence[int] = ()
    marker: Sequence[int] = ()

    def __init__(self, contract: Contract, vocab_size: int, wrong: int = 0, seed: int = 0) -> None:
        super().__init__(contract, vocab_size, seed)
        self.wrong = wrong

    def logits_after(self, context: Sequence[float] | np.ndarray) -> Logits:
        row = super().logits_after(context).copy()
        text = [int(token) for token in context]
        marker = list(self.marker)
        start = next((end for end in range(len(text), 0, -1) if text[max(0, end - len(marker)) : end] == marker), None)
        if start is None:
            return row
        written, script = text[start:], [*self.script, EOS]
        if written == script[: len(written)] and len(written) < len(script):
            mistaken = self.wrong and len(written) % self.wrong == self.wrong - 1
            row[script[len(written)]] += np.float32(-20 if mistaken else 20)
        return row


def scripted_session(
    root: Path,
    template: str,
    marker: str,
    special: Sequence[str] = (),
    atoms: Sequence[str] = (),
    capacity: int = CONTRACT.capacity,
) -> Session:
    """marker: what the template ends a prompt with. special, atoms: tokens that the tokenizer has besides its bytes,
    special ones and others.
    """
    tokenizer = byte_tokenizer()
    for name in (*special, *atoms):
        tokenizer.add_tokens([AddedToken(name, special=name in special, normalized=False)])
    size = VOCAB + len(special) + len(atoms)
    contract = replace(CONTRACT, capacity=capacity)
    bundle = write_bundle(root, contract, size, size, (EOS,), template)
    tokenizer.save(str(root / "tokenizer/tokenizer.json"))
    target, draft = Scripted(contract, size), Scripted(contract, size, wrong=7)
    for decoder in (target, draft):
        decoder.marker = tokenizer.encode(marker).ids
    return Session(bundle, Engine("scripted", "ort", target, OpenedDraft(draft)))


def tell(session: Session, text: str) -> None:
    """What both models write from now on."""
    tell_ids(session, session.tokenizer.encode(text, add_special_tokens=False).ids)


def tell_ids(session: Session, script: Sequence[int]) -> None:
    """The same, as tokens."""
    draft = session.engine.draft
    assert draft is not None
    for decoder in (session.engine.target, draft.decoder):
        assert isinstance(decoder, Scripted)
        decoder.script = script
